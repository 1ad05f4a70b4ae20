// SPDX-License-Identifier: MIT
// A page about a zoo: every set with its model, recipe, bits, what verify measured beside other methods, and the
// command that fetches it. One HTML file without scripts, made of index.json alone. Non-goal: a place to search
// thousands of sets.
#pragma once

#include <string>

#include "zoo/index.hpp"

namespace oscar {

/// zoo: what readers pass to --zoo; empty: they have it already. Everything from the index is escaped.
[[nodiscard]] std::string render_zoo(const ZooIndex& index, const std::string& zoo);

}  // namespace oscar
