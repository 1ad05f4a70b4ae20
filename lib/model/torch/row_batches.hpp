// SPDX-License-Identifier: MIT
// Functions of single rows, applied to all rows at once, or where memory is short, to fewer at a time from then on.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <string>

#include "model/torch/device.hpp"

namespace oscar {

class RowBatches {
 public:
  RowBatches(const Device& device, std::function<void(const std::string&)> notice)
      : device_(device), notice_(std::move(notice)) {}

  /// f(x), x (T, …), of the shape of x. Throws what f throws when memory does not suffice for kFewest rows.
  template <class F>
  at::Tensor operator()(const at::Tensor& x, const F& f) const {
    while (true) {
      const std::int64_t batch = std::min(x.size(0), largest_.load());
      try {
        return batch == x.size(0) ? f(x) : in_parts(x, batch, f);
      } catch (const std::exception& error) {
        if (!is_out_of_memory(error) || batch <= kFewest) throw;
      }
      largest_ = (batch + 1) / 2;
      device_.release_unused();
      notice_("memory is short: an MLP takes " + std::to_string(largest_) + " tokens at a time");
    }
  }

 private:
  static constexpr std::int64_t kFewest = 128;

  template <class F>
  static at::Tensor in_parts(const at::Tensor& x, std::int64_t batch, const F& f) {
    at::Tensor out = at::empty_like(x);
    for (std::int64_t begin = 0; begin < x.size(0); begin += batch) {
      const std::int64_t size = std::min(batch, x.size(0) - begin);
      out.narrow(0, begin, size).copy_(f(x.narrow(0, begin, size)));
    }
    return out;
  }

  const Device& device_;
  std::function<void(const std::string&)> notice_;
  mutable std::atomic<std::int64_t> largest_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace oscar
