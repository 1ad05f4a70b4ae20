// SPDX-License-Identifier: MIT
// The output head, read in blocks of rows: it may be the largest matrix of a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "model/decoder_torch/weights.hpp"

namespace oscar {

/// As "norm".
void load_final_norm(const WeightRoute& route, Weights& weights);
/// logits (n, rows of the head), soft-capped as the model says, of the last n rows of hidden (T, hidden_size).
void write_logits(const WeightRoute& route, const Weights& final_norm, const at::Tensor& hidden,
                  std::span<float> logits);

}  // namespace oscar
