// SPDX-License-Identifier: MIT
// Reads weights as they are stored from their files to a device, in pieces, by several threads. For a GPU each thread
// passes pieces through pinned memory of its own, so that reading and uploading overlap.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
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

/// One weight in a form that checkpoints keep it in: floats, float8 with scales, MXFP4. Filled once the fetch that
/// wants it has run.
struct StoredWeight {
  at::Tensor value;
  at::Tensor scale;  // of float8 and MXFP4
  std::string name;

  /// What it stands for: matrices in `dtype`, vectors in fp32. Throws DataError for scales that do not fit.
  [[nodiscard]] at::Tensor unpack(at::ScalarType dtype) const;
};

/// The scales of the named rows of a float8 matrix (rows, columns), which may be broadcast over them.
[[nodiscard]] at::Tensor scales_of_rows(const at::Tensor& scale, const at::Tensor& rows, const TensorRef& matrix,
                                        const std::string& name);
/// libtorch's name of a type that weights are stored in. Throws DataError for others.
[[nodiscard]] at::ScalarType stored_type(DType dtype);
/// "…q_proj.weight" -> its scales: one for all, one per row, or one per block of rows and columns.
[[nodiscard]] std::string scales_of(const WeightStore& store, const std::string& name);

[[nodiscard]] StoredWeight want_weight(Fetch& fetch, const WeightStore& store, const std::string& name);
/// Part `index` of a stack of floats, or of float8 with scales.
[[nodiscard]] StoredWeight want_slice(Fetch& fetch, const WeightStore& store, const std::string& name, int index);
/// Part `index` of "<name>_blocks" (count, out, in / 32, 16) and "<name>_scales".
[[nodiscard]] StoredWeight want_mxfp4(Fetch& fetch, const WeightStore& store, const std::string& name, int index);

}  // namespace oscar
