// SPDX-License-Identifier: MIT
#include "kernels/types.hpp"

#include <string>

#include "base/errors.hpp"

namespace oscar {

std::string_view name_of(Grid grid) { return grid == Grid::kMinMax ? "minmax" : "lsq"; }

Grid grid_from_name(std::string_view name) {
  for (const Grid grid : {Grid::kMinMax, Grid::kLeastSquares}) {
    if (name == name_of(grid)) return grid;
  }
  throw UsageError("unknown codec \"" + std::string(name) + "\"", "--codec", "use minmax or lsq");
}

void AttentionErrors::add(const AttentionErrors& other) {
  softmax_kl += other.softmax_kl;
  output_error += other.output_error;
  output_norm += other.output_norm;
  logit_error += other.logit_error;
  logit_norm += other.logit_norm;
  queries += other.queries;
  query_kl.insert(query_kl.end(), other.query_kl.begin(), other.query_kl.end());
}

}  // namespace oscar
