// SPDX-License-Identifier: MIT
#include "fit/enough_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"

namespace oscar {

std::optional<std::string> too_few_tokens(const QkvSource& source, const FitOptions& options) {
  const ModelIdentity& model = source.model();
  const std::int64_t tokens = source.calibration().tokens;
  if (tokens == 0 || model.head_dim == 0 || model.num_key_value_heads == 0 || options.recipe == "hadamard") return {};
  const bool per_head = options.granularity.find("head") != std::string::npos;
  const std::int64_t rows_per_token = per_head ? 1 : model.num_key_value_heads;
  const std::int64_t rows = std::int64_t{kRowsPerChannel} * std::max(model.head_dim, model.value_dim);
  const std::int64_t needed = (rows + rows_per_token - 1) / rows_per_token;
  if (tokens >= needed) return {};
  return fmt::format("{} {} few for the matrices of a {} with {}: {} or more are needed", plural(tokens, "token"),
                     tokens == 1 ? "is" : "are", per_head ? "head" : "layer", plural(model.head_dim, "channel"),
                     needed);
}

}  // namespace oscar
