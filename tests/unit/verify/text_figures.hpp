// SPDX-License-Identifier: MIT
#pragma once

#include "measure/predictions/model_metrics.hpp"
#include "model/run/runner.hpp"

namespace oscar::test {

/// The figures of every position of a text that has a next token. logits, exact: (tokens, vocab).
inline TextFigures text_figures(const TokenSequence& tokens, std::span<const float> logits,
                                std::span<const float> exact) {
  const std::size_t vocab = logits.size() / tokens.size();
  TextFigures figures;
  TokenDistribution p, q;
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
    p.read(exact.subspan(t * vocab, vocab));
    q.read(logits.subspan(t * vocab, vocab));
    figures.push_back(compare(p, q, static_cast<std::size_t>(tokens[t + 1])));
  }
  return figures;
}

}  // namespace oscar::test
