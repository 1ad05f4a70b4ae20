// SPDX-License-Identifier: MIT
// From findings to a verdict, with reasons in words.
// Whether the text that was measured on can say something about a set: was it held out, and was enough of it quantised?
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/types.hpp"
#include "measure/keys_read.hpp"
#include "measure/predictions/model_metrics.hpp"
#include "model/config/identity.hpp"
#include "verify/report/report.hpp"

namespace oscar::verify {

/// What a part of INT2 rows may do at most: between what sets that work, and others, did to the models named below
/// (tests/bench/results/limits.json, tests/unit/verify/verdict_test.cpp).
[[nodiscard]] VerifyThresholds int2_thresholds();

/// What the coded cache of so many bits a value, all counted, may do at most. A bit divides the squared error of a
/// channel by 4 (6.02 dB), and all four figures grow with squared errors: so do the limits, from 2.25 bits on, where
/// they lie between sets that work and sets of the same bits that were fitted on other text (tests/bench/results:
/// real_model_h200.json, limits.json). However few the bits are, no limit is above that of codes of 2 bits, beyond
/// which a model loses what it reads far back; however many they are, no limit of predictions is below that of 2.25
/// bits, which a model does not feel.
[[nodiscard]] VerifyThresholds coded_thresholds(double bits);

/// Say which models the default limits were measured on, in words that follow "measured on".
inline constexpr const char* kDefaultLimitsMeasuredOn =
    "language models of 135M and 270M parameters and research models of 2.4M and 15M";
inline constexpr const char* kCodedLimitsMeasuredOn =
    "language models of 135M and 270M parameters and a research model of 2.4M";

/// Fills limits, verdicts, reasons and warnings. Default limits of attention hold where the model was not run: where it
/// was, its predictions decide, and attention only explains them. report.reasons: why the whole set is rejected
/// already. given: hold for every part; default_limits: where no threshold is given, those of the part's bits hold what
/// was measured. A part is accepted only if a figure of its own was held to a limit, and a reader with its part. The
/// set is rejected if a structure check failed, or if a reader's part is rejected and that of no reader is accepted;
/// where readers were chosen, if any of them is rejected. A given threshold on something that was not
/// measured rejects the part.
void judge(VerifyReport& report, const VerifyThresholds& given, bool default_limits);

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
