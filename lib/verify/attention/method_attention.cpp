// SPDX-License-Identifier: MIT
#include "verify/attention/method_attention.hpp"

#include <numeric>
#include <vector>

namespace oscar::verify {

void attend(const KvMethod& method, int layer, const QkvView& qkv, SequenceRange queries, const ScoreRule& rule,
            Precision precision, Backend& backend, std::span<float> out) {
  QkvView asked = qkv;
  asked.q = qkv.q.tokens(queries.begin, queries.end);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(queries.size()));
  std::iota(positions.begin(), positions.end(), queries.begin);
  const HeldSequence held = hold(method, layer, asked, positions, precision, backend, &rule);
  held.rows->attend(method.layer(layer).codecs(), method.windows, out);
}

std::map<int, ScoreRule> rules_of(const ModelRunner& runner) {
  std::map<int, ScoreRule> rules;
  for (const int layer : runner.config().cache_layers()) rules[layer] = runner.score_rule(layer);
  return rules;
}

}  // namespace oscar::verify
