// SPDX-License-Identifier: MIT
// What the index of a zoo says of a set, for people who choose one; the set's manifest decides.
#pragma once

#include "base/json.hpp"

namespace oscar {

/// Returns model, recipe, codec, bits, layers and figures of a manifest that fits its schema.
[[nodiscard]] Json summary_of_set(const Json& manifest);

}  // namespace oscar
