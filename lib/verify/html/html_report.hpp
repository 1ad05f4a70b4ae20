// SPDX-License-Identifier: MIT
// A report as one file that any browser shows, on a phone and in print too: tables, and plots by Chart.js, which the
// file carries with its licence. It fetches nothing. Non-goal: drawing.
#pragma once

#include <string>

#include "verify/report.hpp"

namespace oscar {

/// Throws UsageError if this build has no plotting library.
void require_html_report();

/// UTF-8. Throws as require_html_report().
[[nodiscard]] std::string html_report(const VerifyReport& report);

}  // namespace oscar
