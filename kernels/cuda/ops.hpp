// SPDX-License-Identifier: MIT
// The verbs of kernels/backend.hpp as free functions, one file each; CudaBackend forwards to them. Same parameters,
// same contract (kernels/README.md); arguments and results lie in host memory. Non-goal: being called from elsewhere.
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/context.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

void accumulate_grams(const Context& context, std::span<const HeadsView> parts, MatrixStack& grams);
void accumulate_weighted_grams(const Context& context, std::span<const HeadsView> keys, const MatrixStack& forms,
                               std::span<const HeadsView> values, MatrixStack& grams, std::span<double> weights);
void accumulate_fisher_sums(const Context& context, const QkvView& qkv, std::span<const SequenceRange> sequences,
                            Windows windows, FisherSums& sums);
[[nodiscard]] std::vector<Eigenpairs> eigh(const Context& context, const MatrixStack& symmetric);
void quantize(const Context& context, std::span<const float> rows, int head_dim, const HistoryCodec& codec,
              Precision precision, std::span<float> decoded);

}  // namespace oscar::cuda
