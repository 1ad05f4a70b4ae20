// SPDX-License-Identifier: MIT
// What a model loses when one side of one layer is coded and everything else is exact: by this a fit of the coded cache
// spends its bits.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "coded/coded_set.hpp"
#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "model/runner.hpp"

namespace oscar::verify {

/// Returns what each layer of `set` costs in its order: means over `texts`, of two tokens or more. It may be negative,
/// by noise, beside coded layers. Layers before the one that is measured are run once: their hidden states are kept in
/// a new folder whose name begins with `states`, which goes at the end. Throws IoError.
[[nodiscard]] std::vector<CodedDamage> measure_damage(ModelRunner& runner, std::span<const TokenSequence> texts,
                                                      const CodedSet& set, CodedBeside beside,
                                                      const std::filesystem::path& states, Backend& backend,
                                                      Status& status);

/// Returns the relative squared error of each layer's attention outputs in its place, where no model is at hand: how
/// much of it the model feels is not known then.
[[nodiscard]] std::vector<CodedDamage> measure_attention_damage(QkvSource& source, const CodedSet& set,
                                                                Backend& backend, Status& status);

}  // namespace oscar::verify
