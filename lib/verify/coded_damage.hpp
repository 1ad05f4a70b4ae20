// SPDX-License-Identifier: MIT
// What attention loses when one side of a layer is coded: by this a fit of the coded cache to a dump spends its bits.
#pragma once

#include "coded/coded_set.hpp"
#include "dump/source.hpp"
#include "kernels/backend.hpp"

namespace oscar::verify {

/// Returns the relative squared error of attention outputs in the set's only layer. How much of it a model feels is not
/// known.
[[nodiscard]] CodedDamage measure_attention_damage(QkvSource& source, const CodedSet& set, Backend& backend);

}  // namespace oscar::verify
