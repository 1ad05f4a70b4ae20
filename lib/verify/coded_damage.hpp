// SPDX-License-Identifier: MIT
// What attention loses when one side of one layer is coded: by this a fit of the coded cache to a dump spends its bits.
#pragma once

#include <vector>

#include "base/status.hpp"
#include "coded/coded_set.hpp"
#include "dump/source.hpp"
#include "kernels/backend.hpp"

namespace oscar::verify {

/// Returns the relative squared error of each layer's attention outputs. How much of it a model feels is not known.
[[nodiscard]] std::vector<CodedDamage> measure_attention_damage(QkvSource& source, const CodedSet& set,
                                                                Backend& backend, Status& status);

}  // namespace oscar::verify
