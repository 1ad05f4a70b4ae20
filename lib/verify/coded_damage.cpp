// SPDX-License-Identifier: MIT
#include "verify/coded_damage.hpp"

#include "base/check.hpp"
#include "verify/measure.hpp"

namespace oscar::verify {
CodedDamage measure_attention_damage(QkvSource& source, const CodedSet& set, Backend& backend) {
  OSCAR_CHECK(set.layers.size() == 1);
  constexpr std::int64_t kQueries = 512;  // of the layer
  const Subject nothing;
  const std::vector<KvMethod> methods{method_of_coded_set(set, set.windows)};
  Status silent;  // the fit tells of layers
  const Measurements found = measure_source(
      source, {&nothing, &methods, {set.layers.front().layer_id}, kQueries, Precision::kServing, false, set.windows},
      backend, silent);
  const AttentionMetrics metrics = found.methods.front().layers.front().metrics();
  return {metrics.output_rel_error_k_only, metrics.output_rel_error_v_only};
}

}  // namespace oscar::verify
