// SPDX-License-Identifier: MIT
// Sums over tokens that fits are made of, as kernels/backend.hpp names them, each by its formula in fp64. Every
// function adds to what its sums hold already. Shapes and errors are those of the backend's verbs.
#pragma once

#include <span>

#include "kernels/types.hpp"

namespace oscar::reference {

/// grams[h] += sum_t row^T row over the x.num_heads / grams.count heads of group h.
void accumulate_grams(HeadsView x, MatrixStack& grams);

/// grams[h] += sum_t max(w, 0) v[t, h]^T v[t, h] and weights[h] += sum_t w, where w = k[t, h] forms[h] k[t, h]^T.
void accumulate_weighted_grams(HeadsView k, const MatrixStack& forms, HeadsView v, MatrixStack& grams,
                               std::span<double> weights);

/// Adds what FisherSums defines, with causal attention and windows inside each sequence.
void accumulate_fisher_sums(const QkvView& qkv, std::span<const SequenceRange> sequences, Windows windows,
                            FisherSums& sums);

}  // namespace oscar::reference
