// SPDX-License-Identifier: MIT
// Retrieval tasks made from any text: a span of tokens from elsewhere is put in early and repeated at the end, and a
// model that can look back finds how it goes on. They say which KV method keeps what lies far back, without needing
// anybody's needles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/run/runner.hpp"

namespace oscar::verify {

struct ProbeOptions {
  int count = 16;
  int span_tokens = 24;
  /// How many tokens of the repeated span the model is given before it has to go on by itself.
  int cue_tokens = 8;
  /// The length is at most this; the span begins behind `first` and ends `distance` tokens or more before its
  /// repetition.
  std::int64_t length = 1024, first = 64, distance = 320;
  std::uint64_t seed = 0;
};

struct Probes {
  std::vector<TokenSequence> sequences;
  std::vector<int> answer_lengths;
};

/// texts: what the probes are written into, in turns; spans: where the repeated spans come from. Fewer than `count` (or
/// none) if the texts are too short.
[[nodiscard]] Probes make_probes(std::span<const TokenSequence> texts, std::span<const TokenSequence> spans,
                                 const ProbeOptions& options);

}  // namespace oscar::verify
