// SPDX-License-Identifier: MIT
// The matrix that takes attention outputs to the residual stream.
#pragma once

#include <filesystem>

#include "model/config/config.hpp"
#include "tensor/tensor.hpp"

namespace oscar {

/// Reads W_O of a layer as stored, (hidden_size, Hq, d): the residual stream gets sum_h o_h W_O[:, h, :]^T. Throws
/// DataError if the checkpoint has none of that shape.
[[nodiscard]] Tensor read_output_projection(const std::filesystem::path& model, const ModelConfig& config, int layer);

}  // namespace oscar
