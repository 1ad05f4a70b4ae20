// SPDX-License-Identifier: MIT
// From findings to a verdict, with reasons in words.
#pragma once

#include "verify/report.hpp"
#include "verify/verify.hpp"

namespace oscar::verify {

/// What a set of so many bits a code (mean of keys and values, or those of the keys if they are less; half bits count
/// as 3) may do at most: between what sets that work, and what others of the same bits, did to the models named below
/// (tests/bench/results/limits.json, tests/unit/verify/verdict_test.cpp).
[[nodiscard]] VerifyThresholds default_thresholds(double bits_per_code);

/// Says which models the default limits were measured on, in words that follow "measured on".
inline constexpr const char* kDefaultLimitsMeasuredOn =
    "a language model of 135M parameters and research models of 2.4M and 15M";

/// Fills limits, verdict, reasons and warnings. defaults: where no threshold is given, for what was measured. A set is
/// accepted only if a figure of its own was held to a limit. Throws UsageError for a given threshold on something that
/// was not measured.
void judge(VerifyReport& report, const VerifyThresholds& given, const VerifyThresholds& defaults);

}  // namespace oscar::verify
