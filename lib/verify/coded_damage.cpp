// SPDX-License-Identifier: MIT
#include "verify/coded_damage.hpp"

#include "verify/measure.hpp"

namespace oscar::verify {
std::vector<CodedDamage> measure_attention_damage(QkvSource& source, const CodedSet& set, Backend& backend,
                                                  Status& status) {
  constexpr std::int64_t kQueries = 512;  // of each layer
  const Subject nothing;
  const std::vector<KvMethod> methods{method_of_coded_set(set, set.windows)};
  const Measurements found = measure_source(
      source, {&nothing, &methods, {}, kQueries, Precision::kServing, false, set.windows}, backend, status);
  std::vector<CodedDamage> damage;
  for (const AttentionSums& layer : found.methods.front().layers) {
    const AttentionMetrics metrics = layer.metrics();
    damage.push_back({metrics.output_rel_error_k_only, metrics.output_rel_error_v_only});
  }
  return damage;
}

}  // namespace oscar::verify
