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

/// Returns the mean KL of the model's predictions over `texts`, of two tokens or more, for each layer of `set` in its
/// order. Layers before the coded one are run once: their hidden states are kept in a new folder whose name begins with
/// `states`, which goes at the end. Throws IoError.
[[nodiscard]] std::vector<CodedDamage> measure_damage(ModelRunner& runner, std::span<const TokenSequence> texts,
                                                      const CodedSet& set, const std::filesystem::path& states,
                                                      Backend& backend, Status& status);

/// Returns the relative squared error of each layer's attention outputs in its place, where no model is at hand: how
/// much of it the model feels is not known then.
[[nodiscard]] std::vector<CodedDamage> measure_attention_damage(QkvSource& source, const CodedSet& set,
                                                                Backend& backend, Status& status);

}  // namespace oscar::verify
