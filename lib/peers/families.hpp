// SPDX-License-Identifier: MIT
// What each file of this folder contributes to sequence_methods(). Formulas stand in the files.
#pragma once

#include "peers/sequence_method.hpp"

namespace oscar::methods {

using Family = std::vector<SequenceMethod>;

/// e4m3(x), 8 bits.
[[nodiscard]] SideMethod fp8_side();

[[nodiscard]] Family symmetric_methods();
[[nodiscard]] Family quarot_methods();
[[nodiscard]] Family turboquant_methods();
[[nodiscard]] Family kivi_methods();
[[nodiscard]] Family rotatekv_methods();
[[nodiscard]] Family occam_methods();
[[nodiscard]] Family optr_methods();
[[nodiscard]] Family kvquant_methods();
[[nodiscard]] Family skvq_methods();
[[nodiscard]] Family llama_cpp_methods();
[[nodiscard]] Family float_methods();
[[nodiscard]] Family lloyd_max_methods();

}  // namespace oscar::methods
