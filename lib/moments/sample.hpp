// SPDX-License-Identifier: MIT
// A few sequences of a layer, copied: what clip ratios and candidates of a search are judged on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dump/source.hpp"
#include "moments/take.hpp"
#include "tensor/tensor.hpp"

namespace oscar {

struct SampleOptions {
  /// Keys per layer, in sequences of at most max_sequence_tokens; only sequences longer than the windows can tell
  /// anything.
  std::int64_t sample_tokens = 3072;
  std::int64_t max_sequence_tokens = 1536;
  /// Query rows in all (over sequences and query heads), at random positions behind the windows.
  std::int64_t query_rows = 1024;
  std::uint64_t seed = 0;
};

/// One sampled sequence: all keys and values, a few queries.
struct SampledSequence {
  Tensor q, k, v;                             // (num_queries, Hq, d), (T, Hkv, d), (T, Hkv, d)
  std::vector<std::int64_t> query_positions;  // ascending
};

/// Draws a sample from the sequences that `takes` says; empty if none of them is longer than the windows. Throws
/// DataError for rows that are not finite or all zero.
[[nodiscard]] std::vector<SampledSequence> sample_layer(LayerStream& layer, Windows windows,
                                                        const SampleOptions& options, const TakesSequence& takes = {});
/// Returns "4096 keys in 2 sequences, 128 queries per head, seed 0"; "" for an empty sample.
[[nodiscard]] std::string describe(std::span<const SampledSequence> sample, const SampleOptions& options);

}  // namespace oscar
