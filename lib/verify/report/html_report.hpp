// SPDX-License-Identifier: MIT
// A report as one file that any browser shows, on a phone and in print too: tables, and plots by Chart.js, which the
// file carries with its licence. It fetches nothing. Non-goal: drawing.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "verify/report/report.hpp"

namespace oscar {

/// Throws UsageError if this build has no plotting library.
void require_html_report();

/// What a reader wants to know of a report, and the report itself must not hold: it has the same bytes in every run.
struct ReportOrigin {
  std::string command;  // without secrets
  std::string date;
};

/// UTF-8, whatever bytes names are of. Throws as require_html_report().
[[nodiscard]] std::string html_report(const VerifyReport& report, const ReportOrigin& origin);

/// The parts of the page, as they were when this was built: html, style, script, and, where Chart.js was installed,
/// library and licence.
[[nodiscard]] const std::map<std::string, std::string, std::less<>>& page_parts();

}  // namespace oscar
