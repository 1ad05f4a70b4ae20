// SPDX-License-Identifier: MIT
// A few sequences of a layer, copied: what clip ratios are judged on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dump/source.hpp"
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
  friend bool operator==(const SampleOptions&, const SampleOptions&) = default;
};

/// One sampled sequence: all keys and values, a few queries.
struct SampledSequence {
  Tensor q, k, v;                             // (num_queries, Hq, d), (T, Hkv, d), (T, Hkv, d)
  std::vector<std::int64_t> query_positions;  // ascending
};

/// Draws a sample; empty if no sequence is longer than the windows. Throws DataError for rows that are not finite or
/// all zero.
[[nodiscard]] std::vector<SampledSequence> sample_layer(LayerStream& layer, Windows windows,
                                                        const SampleOptions& options);
/// Joins samples of parts of the data, drawn with these options: sequences of all parts in turns, and of each as many
/// of its queries, so that all together keep to the options.
[[nodiscard]] std::vector<SampledSequence> join_samples(std::vector<std::vector<SampledSequence>> parts,
                                                        const SampleOptions& options);
/// Returns "4096 keys in 2 sequences, 128 queries per head, seed 0"; "" for an empty sample.
[[nodiscard]] std::string describe(std::span<const SampledSequence> sample, const SampleOptions& options);

}  // namespace oscar
