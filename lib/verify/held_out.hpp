// SPDX-License-Identifier: MIT
// Figures count only on text that a set was not fitted on. Token ids are compared in blocks, so that the same text is
// found again when it is cut into sequences of another length.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/identity.hpp"
#include "verify/report.hpp"

namespace oscar::verify {

/// How many of the measured sequences were fitted on: half of their blocks or more are among the fitted ones.
/// None if that cannot be told.
[[nodiscard]] std::optional<std::int64_t> sequences_fitted_on(const CalibrationData& fitted,
                                                              const CalibrationData& measured);

/// Records in report.data[what] whether `measured` is held out; warns if it is not, or, where held-out data is
/// `required`, rejects, also if it cannot be told. what: "attention" or "model".
void judge_held_out(VerifyReport& report, const std::string& what, const CalibrationData& fitted,
                    const CalibrationData& measured, bool required);

}  // namespace oscar::verify
