// SPDX-License-Identifier: MIT
// What a sequence has while it passes a layer, as tensors, and where that lives.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "model/torch/device.hpp"
#include "model/torch/layer_math.hpp"

namespace oscar {

/// Applies functions of single rows to all rows at once, or where memory is short, to fewer at a time from then on.
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

/// Hidden states, on the device, or on the host while nobody computes with them.
struct HiddenRows : Rows {
  at::Tensor x;  // (T, hidden_size)
  std::int64_t first_position = 0;
  at::Tensor before;              // x before the mixer, where the MLP of the same layer reads that
  std::map<int, Projected> kept;  // by layer: k and v of those whose keys and values later layers read
  // What inputs of layers are made of, where there are some: the tokens, and what x was before the first layer.
  std::vector<std::int32_t> tokens;
  at::Tensor embedding;
};

[[nodiscard]] inline const HiddenRows& state_of(const Rows& rows) { return static_cast<const HiddenRows&>(rows); }
[[nodiscard]] inline HiddenRows& state_of(Rows& rows) { return static_cast<HiddenRows&>(rows); }

[[nodiscard]] inline at::ScalarType scalar_type(DType dtype) {
  OSCAR_CHECK(is_activation_dtype(dtype));
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kBF16 ? at::kBFloat16 : at::kHalf;
}

/// Returns a copy in host memory of hidden states, which are float32 or bfloat16.
[[nodiscard]] inline Tensor host_copy(const at::Tensor& hidden) {
  const at::Tensor x = hidden.cpu().contiguous();
  Tensor copy(x.scalar_type() == at::kFloat ? DType::kF32 : DType::kBF16, {x.size(0), x.size(1)});
  std::memcpy(copy.data.data(), x.data_ptr(), copy.data.size());
  return copy;
}

[[nodiscard]] inline at::Tensor from_host_copy(const TensorRef& copy) {
  const at::Tensor x = at::empty(copy.shape, scalar_type(copy.dtype));
  std::memcpy(x.data_ptr(), copy.data.data(), copy.data.size());
  return x;
}

/// The caller's floats on a device, in libtorch's own memory, whose alignment never changes: the matrix library picks
/// its code by alignment, and results must not depend on where a caller's buffer happens to lie.
[[nodiscard]] inline at::Tensor floats_on(c10::Device place, std::span<const float> values, at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions(at::kFloat).device(place));
  OSCAR_CHECK(static_cast<std::size_t>(tensor.numel()) == values.size());
  return tensor.copy_(at::from_blob(const_cast<float*>(values.data()), shape, at::kFloat));
}

/// Writes a tensor of floats; nothing if it is undefined.
inline void write_floats(const at::Tensor& x, std::span<float> out) {
  if (!x.defined()) return;
  OSCAR_CHECK(static_cast<std::size_t>(x.numel()) == out.size());
  std::memcpy(out.data(), x.cpu().contiguous().data_ptr(), out.size_bytes());
}

struct QkvRows : Rows {
  Projected qkv;
  Projected converted;               // what is being copied
  at::Tensor finite;                 // whether all of q are, all of k, all of v
  at::Tensor finite_on_host;         // the same
  std::optional<c10::Event> copied;  // of a GPU
};

/// The experts that tokens chose, sorted by expert.
struct ExpertSlots {
  at::Tensor tokens, weights;        // (T * top_k): int64; fp32
  std::vector<std::int64_t> begins;  // of each expert's slots; one more than there are experts
  /// Experts that are named, ascending.
  [[nodiscard]] std::vector<int> chosen() const;
};

/// Rows of the sequences that experts see together, T tokens in all.
struct RoutedRows : Rows {
  at::Tensor normed;  // (T, hidden_size), what routed experts read
  at::Tensor sum;     // the same shape in fp32
  at::Tensor shared;  // the same, of the experts for all tokens, where `sum` has a norm of its own; else nothing
  ExpertSlots slots;
};

/// Where hidden states live while no layer computes with them: on the device, or on the host if the device has too
/// little memory.
class HiddenHome {
 public:
  HiddenHome(const Device& device, bool on_host, std::function<void(const std::string&)> notice)
      : device_(device), on_host_(on_host), notice_(std::move(notice)) {}

  /// Decides for hidden states of so many bytes, which will live at a time.
  void make_room(double bytes) {
    if (!device_.is_gpu() || on_host_) return;
    on_host_ = bytes > kShare * static_cast<double>(device_.free_bytes());
    if (on_host_) notice_("hidden states live in the host's memory: the GPU has too little");
  }

  [[nodiscard]] bool on_host() const { return on_host_; }

  /// x as it rests between layers; never the memory of `x` there, which keep() writes to.
  [[nodiscard]] at::Tensor resting(const at::Tensor& x) const { return on_host_ ? x.cpu().clone() : x; }
  /// Hidden states on the device.
  [[nodiscard]] at::Tensor here(const Rows& hidden) const { return state_of(hidden).x.to(device_.place()); }
  /// Replaces hidden states.
  void keep(Rows& hidden, const at::Tensor& x) const {
    at::Tensor& own = state_of(hidden).x;
    if (!on_host_) {
      own = x;
    } else if (own.defined()) {
      own.copy_(x);
    } else {
      own = x.cpu();
    }
  }
  /// Takes hidden states to the host if the device would soon be full of others like them.
  void put_aside(HiddenRows& hidden) const {
    if (device_.is_gpu() && device_.free_bytes() < kSpareCopies * hidden.x.nbytes()) hidden.x = hidden.x.cpu();
  }

 private:
  static constexpr double kShare = 0.5;            // of a GPU's free memory
  static constexpr std::size_t kSpareCopies = 32;  // for which a GPU keeps memory free

  const Device& device_;
  bool on_host_;
  std::function<void(const std::string&)> notice_;
};

/// Channels of all that a sequence takes from layer to layer: hidden states, then keys and values that later layers
/// read.
[[nodiscard]] std::int64_t state_width(const ModelConfig& config);
/// (T, state_width): zeros where keys and values have not been made yet.
[[nodiscard]] at::Tensor packed_state(const ModelConfig& config, const HiddenRows& hidden);
/// Fills x, and k and v of all layers that share theirs.
void unpack_state(const ModelConfig& config, const at::Tensor& state, HiddenRows& hidden);

/// Starts copies to the host in the type of `out`, beside what a GPU computes meanwhile.
void start_copy(const Device& device, QkvRows& rows, const QkvBuffers& out);
/// Waits for them. As decoder.hpp's finish_copy.
[[nodiscard]] std::string finish_copy(QkvRows& rows);

/// Chooses the experts of hidden states (T, hidden_size) (mlp.cpp). The sum starts with what shared experts give, or
/// with zeros where that is kept apart.
[[nodiscard]] std::unique_ptr<RoutedRows> route_rows(const Weights& layer, const at::Tensor& hidden,
                                                     const RowBatches& by_rows);
void add_to_sum(const Weights& layer, int expert, const Weights& weights, const RowBatches& by_rows, RoutedRows& rows);
/// What all experts add to hidden states, fp32.
[[nodiscard]] at::Tensor whole_sum(const Weights& layer, const RoutedRows& rows);

}  // namespace oscar
