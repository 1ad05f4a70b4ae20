// SPDX-License-Identifier: MIT
// The output head, read in blocks of rows: it may be the largest matrix of a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "model/decoder_torch/weights.hpp"

namespace oscar {

/// As "norm".
void load_final_norm(const WeightRoute& route, Weights& weights);
/// normed (T, hidden_size), logits (T, rows of the head), soft-capped as the model says.
void write_logits(const WeightRoute& route, const at::Tensor& normed, std::span<float> logits);

}  // namespace oscar
