// SPDX-License-Identifier: MIT
// Reads weights as they are stored from their files to a device, in pieces, by several threads. For a GPU each thread
// passes pieces through pinned memory of its own, so that reading and uploading overlap.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "model/run/decoder.hpp"
#include "model/torch/device.hpp"

namespace oscar {

class Fetch {
 public:
  Fetch(const WeightStore& store, const Device& device);
  /// The stored type and shape (a scalar as [1]); the values are there after run(). Called on the loading stream.
  [[nodiscard]] at::Tensor want(const TensorRef& part);
  void run();

 private:
  struct Piece {
    std::span<const std::byte> from;
    std::byte* to;  // on the device
  };
  void upload(const std::function<const Piece*()>& take) const;

  const WeightStore& store_;
  const Device& device_;
  std::size_t piece_bytes_;
  std::vector<Piece> pieces_;
};

/// A whole tensor that a file holds, or part `index` of a stack (count, …).
[[nodiscard]] TensorRef slice(const TensorRef& stack, int index);

}  // namespace oscar
