// SPDX-License-Identifier: MIT
// From findings to accepted or rejected, with reasons in words.
#pragma once

#include "verify/report.hpp"
#include "verify/verify.hpp"

namespace oscar::verify {

/// Fills accepted, reasons and warnings. Throws UsageError for a threshold on something that was not measured.
void judge(VerifyReport& report, const VerifyThresholds& thresholds);

}  // namespace oscar::verify
