// SPDX-License-Identifier: MIT
// Other people's methods that look at more than one row (codec/side_method.hpp): what each of them is called and how
// its authors use it. Methods whose rows stand alone are an optional rotation and a row codec (baselines.hpp).
#pragma once

#include <string>
#include <vector>

#include "codec/side_method.hpp"
#include "peers/matrix.hpp"

namespace oscar {

struct SequenceMethod {
  std::string name;
  /// One line: what it is, and what stands in for what a dump lacks.
  std::string summary;
  /// Its authors' windows.
  Windows windows;
  SideMethod key, value;
  /// Its authors quantise keys before RoPE.
  bool before_rope = false;
  /// So many layers at either end of the model stay bfloat16.
  std::size_t exact_end_layers = 0;
};

/// Returns all of them, in the order of reports.
[[nodiscard]] const std::vector<SequenceMethod>& sequence_methods();
/// Returns null if there is none of that name.
[[nodiscard]] const SequenceMethod* find_sequence_method(const std::string& name);

namespace methods {

/// Returns the rows of a history as a matrix (tokens * heads, dim).
[[nodiscard]] inline Matrix by_head(const History& history) {
  return {history.rows, static_cast<std::size_t>(history.tokens * history.heads),
          static_cast<std::size_t>(history.dim)};
}
/// Returns the rows of a history as a matrix (tokens, heads * dim).
[[nodiscard]] inline Matrix by_token(const History& history) {
  return {history.rows, static_cast<std::size_t>(history.tokens),
          static_cast<std::size_t>(history.heads) * static_cast<std::size_t>(history.dim)};
}

}  // namespace methods
}  // namespace oscar
