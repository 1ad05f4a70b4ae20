// SPDX-License-Identifier: MIT
// Keys before their rotary embedding.
#pragma once

#include "peers/sequence_method.hpp"

namespace oscar::methods {

/// Turns every row by its position, or back.
void apply_rope(const History& history, const Rope& rope, bool back);

/// `side` on keys as they were before RoPE; the result is embedded again. Without rope information: on keys as they
/// are.
[[nodiscard]] SideMethod before_rope(SideMethod side);

}  // namespace oscar::methods
