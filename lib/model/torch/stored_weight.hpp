// SPDX-License-Identifier: MIT
// One weight in the forms that checkpoints keep it in, and what it stands for: floats, float8 with scales, MXFP4.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "model/torch/fetch.hpp"

namespace oscar {

/// Filled once the fetch that wants it has run.
struct StoredWeight {
  at::Tensor value;
  at::Tensor scale;  // of float8 and MXFP4
  std::string name;

  /// What it stands for: matrices in `dtype`, vectors in fp32. Throws DataError for scales that do not fit.
  [[nodiscard]] at::Tensor unpack(at::ScalarType dtype) const;
};

[[nodiscard]] StoredWeight want_weight(Fetch& fetch, const WeightStore& store, const std::string& name);
/// Part `index` of a stack of floats.
[[nodiscard]] StoredWeight want_slice(Fetch& fetch, const WeightStore& store, const std::string& name, int index);
/// Part `index` of "<name>_blocks" (count, out, in / 32, 16) and "<name>_scales".
[[nodiscard]] StoredWeight want_mxfp4(Fetch& fetch, const WeightStore& store, const std::string& name, int index);

}  // namespace oscar
