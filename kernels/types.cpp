// SPDX-License-Identifier: MIT
#include "kernels/types.hpp"

#include <string>

#include "base/errors.hpp"

namespace oscar {

std::string_view name_of(Grid grid) { return grid == Grid::kLloydMax ? "lloyd-max" : "minmax"; }

Grid grid_from_name(std::string_view name) {
  for (const Grid grid : {Grid::kMinMax, Grid::kLloydMax}) {
    if (name == name_of(grid)) return grid;
  }
  throw UsageError("unknown codec \"" + std::string(name) + "\"", "--codec", "use minmax or lloyd-max");
}

RowCodec HistoryCodec::of_head(int kv_head) const {
  RowCodec codec = *this;
  if (!head_clip_ratios.empty()) codec.clip_ratio = head_clip_ratios.at(static_cast<std::size_t>(kv_head));
  return codec;
}

void AttentionErrors::add(const AttentionErrors& other) {
  softmax_kl += other.softmax_kl;
  output_error += other.output_error;
  output_norm += other.output_norm;
  output_cosine += other.output_cosine;
  logit_error += other.logit_error;
  logit_norm += other.logit_norm;
  needle_mass += other.needle_mass;
  needle_kept += other.needle_kept;
  queries += other.queries;
  query_kl.insert(query_kl.end(), other.query_kl.begin(), other.query_kl.end());
}

}  // namespace oscar
