// SPDX-License-Identifier: MIT
// Whether the text that was measured on can say something about a set: was it held out, and was enough of it quantised?
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/types.hpp"
#include "measure/keys_read.hpp"
#include "measure/predictions/model_data.hpp"
#include "model/config/identity.hpp"
#include "verify/report/report.hpp"

namespace oscar::verify {

// Figures count only on text that a set was not fitted on. Blocks of token ids are compared: where the ids are at hand,
// fitted blocks are found wherever they stand; of a dump only hashes are, of blocks from the start of each sequence on.

/// How many of the measured sequences were fitted on: half of their blocks or more are among the fitted ones.
/// None if that cannot be told.
[[nodiscard]] std::optional<std::int64_t> sequences_fitted_on(const CalibrationData& fitted,
                                                              const CalibrationData& measured);

/// Returns how many of the measured sequences, given as token ids, the set was fitted on.
[[nodiscard]] std::optional<std::int64_t> sequences_fitted_on(const CalibrationData& fitted,
                                                              std::span<const TokenSequence> measured);

/// Records in report.data[what] whether what was measured, `sequences` of which `seen` were fitted on, is held out;
/// warns if it is not, or, where held-out data is `required`, rejects, also if it cannot be told. what: "attention" or
/// "model".
void judge_held_out(VerifyReport& report, const std::string& what, std::optional<std::int64_t> seen,
                    std::int64_t sequences, bool required);

/// Throws DataError for texts, needles or quotations of which next to nothing is outside the windows.
void require_quantised_texts(const ModelData& data, Windows windows);

}  // namespace oscar::verify
