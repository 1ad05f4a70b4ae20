// SPDX-License-Identifier: MIT
// What somebody who wrote a name that is not there may have meant. Case does not count.
#pragma once

#include <string>
#include <vector>

#include "base/errors.hpp"

namespace oscar {

/// Up to `most` of `names` that `word` is likely a slip of, nearest first; empty if none is near.
[[nodiscard]] std::vector<std::string> near_names(const std::string& word, const std::vector<std::string>& names,
                                                  std::size_t most = 3);

/// Returns the first of near_names(), or "".
[[nodiscard]] std::string nearest_name(const std::string& word, const std::vector<std::string>& names);

/// The error for an option's value that is none of `names`: says which there are, and the one that was likely meant.
/// hint: a whole clause that says more, or empty.
[[nodiscard]] UsageError unknown_choice(const std::string& value, const std::string& option,
                                        const std::vector<std::string>& names, const std::string& hint = "");

}  // namespace oscar
