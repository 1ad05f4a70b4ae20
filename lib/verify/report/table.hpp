// SPDX-License-Identifier: MIT
// The report as people read it on a terminal: cells of a table, and lines of text.
#pragma once

#include <string>
#include <vector>

#include "verify/report/report.hpp"

namespace oscar {

/// A header row and one row per method; columns that nothing was measured for are left out. For format_table().
[[nodiscard]] std::vector<std::vector<std::string>> table_of(const VerifyReport& report);
/// "structure: 40 ok, 3 unknown, 0 failed", warnings, verdict and reasons.
[[nodiscard]] std::string summary_of(const VerifyReport& report);

}  // namespace oscar
