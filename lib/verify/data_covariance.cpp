// SPDX-License-Identifier: MIT
#include "verify/data_covariance.hpp"

#include "stats/moments.hpp"
#include "verify/subject.hpp"

namespace oscar::verify {

std::optional<MatrixStack> covariance_of(const std::string& objective, LayerStream& layer, Backend& backend) {
  const std::string name = objective_name(objective);
  layer.rewind();
  if (name == "qqt") return query_moments(layer, backend).mean();
  if (name == "ktk") return plain_moments(layer, Side::kKey, backend).mean();
  if (name == "vtv") return plain_moments(layer, Side::kValue, backend).mean();
  if (name == "oto") return output_moments(layer, backend).mean();
  if (name != "sst") return std::nullopt;
  const MatrixStack queries = query_moments(layer, backend).mean();
  layer.rewind();
  return score_weighted_value_moments(layer, queries, backend).mean();
}

}  // namespace oscar::verify
