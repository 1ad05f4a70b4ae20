// SPDX-License-Identifier: MIT
#include "verify/predictions/probes.hpp"

#include <algorithm>
#include <random>

namespace oscar::verify {
namespace {

/// A random stretch of a random text that is long enough; empty if none is.
TokenSequence random_span(std::span<const TokenSequence> texts, std::size_t tokens, std::mt19937_64& random) {
  std::vector<const TokenSequence*> long_enough;
  for (const TokenSequence& text : texts) {
    if (text.size() >= tokens) long_enough.push_back(&text);
  }
  if (long_enough.empty()) return {};
  const TokenSequence& text = *long_enough[random() % long_enough.size()];
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(random() % (text.size() - tokens + 1));
  return {begin, begin + static_cast<std::ptrdiff_t>(tokens)};
}

/// text[0, length) with the span at `position` and at the end.
TokenSequence with_span(const TokenSequence& text, std::size_t length, const TokenSequence& span,
                        std::size_t position) {
  TokenSequence out(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(position));
  out.insert(out.end(), span.begin(), span.end());
  out.insert(out.end(), text.begin() + static_cast<std::ptrdiff_t>(position),
             text.begin() + static_cast<std::ptrdiff_t>(length - 2 * span.size()));
  out.insert(out.end(), span.begin(), span.end());
  return out;
}

}  // namespace

Probes make_probes(std::span<const TokenSequence> texts, std::span<const TokenSequence> spans,
                   const ProbeOptions& options) {
  Probes probes;
  std::mt19937_64 random(options.seed);
  const auto span_tokens = static_cast<std::size_t>(options.span_tokens);
  for (int i = 0; i < options.count && !texts.empty(); ++i) {
    const TokenSequence& text = texts[static_cast<std::size_t>(i) % texts.size()];
    const auto length = std::min<std::int64_t>(static_cast<std::int64_t>(text.size()), options.length);
    const std::int64_t last = length - options.distance - 2 * options.span_tokens;
    if (last <= options.first) continue;
    const TokenSequence span = random_span(spans, span_tokens, random);
    if (span.empty()) break;
    const std::int64_t position = options.first + (last - options.first) * (2 * i + 1) / (2 * options.count);
    probes.sequences.push_back(
        with_span(text, static_cast<std::size_t>(length), span, static_cast<std::size_t>(position)));
    probes.answer_lengths.push_back(options.span_tokens - options.cue_tokens);
  }
  return probes;
}

}  // namespace oscar::verify
