// SPDX-License-Identifier: MIT
// The verbs of kernels/backend.hpp as free functions, one file each; CpuBackend forwards to them. Same parameters, same
// contract (kernels/README.md). Non-goal: being called from outside kernels/cpu and its tests.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/mixed_attention.hpp"
#include "kernels/mixed_sequence.hpp"

namespace oscar::cpu {

void accumulate_grams(HeadsView x, MatrixStack& grams);
void accumulate_weighted_grams(HeadsView k, const MatrixStack& forms, HeadsView v, MatrixStack& grams,
                               std::span<double> weights);
void accumulate_fisher_sums(const QkvView& qkv, std::span<const SequenceRange> sequences, Windows windows,
                            FisherSums& sums);
[[nodiscard]] std::vector<Eigenpairs> eigh(const MatrixStack& symmetric);
void rotate(HeadsView x, const MatrixStack& rotated_from_native, Precision precision, std::span<float> rows);
/// Where heads have clip ratios or coded formats of their own, rows are (tokens, heads, head_dim).
void quantize(std::span<const float> rows, int head_dim, const HistoryCodec& codec, Precision precision,
              std::span<float> decoded);
void attend(const MixedAttention& mixed, std::span<float> out);
/// Returns [sequence][candidate][query head]. All sequences have the shape of `exact`, and queries at the same
/// positions.
[[nodiscard]] std::vector<std::vector<std::vector<AttentionErrors>>> compare_attention(
    const QkvView& exact, std::span<const ComparedAttention> sequences);
/// Throws std::logic_error for sequences that hold() has not made.
[[nodiscard]] std::vector<std::vector<std::vector<AttentionErrors>>> compare(
    std::span<const ComparedSequence> sequences);
[[nodiscard]] std::unique_ptr<MixedSequence> hold(const SequenceInput& input);

}  // namespace oscar::cpu
