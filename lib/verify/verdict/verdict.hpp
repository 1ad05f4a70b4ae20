// SPDX-License-Identifier: MIT
// From findings to a verdict, with reasons in words.
#pragma once

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
/// where readers were chosen, if any of them is rejected. Throws UsageError for a given threshold on something that was
/// not measured.
void judge(VerifyReport& report, const VerifyThresholds& given, bool default_limits);

}  // namespace oscar::verify
