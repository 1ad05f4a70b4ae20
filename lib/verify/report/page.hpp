// SPDX-License-Identifier: MIT
// The parts of the page, as they were when this was built: html, style, script, and, where Chart.js was installed,
// library and licence.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace oscar {

[[nodiscard]] const std::map<std::string, std::string, std::less<>>& page_parts();

}  // namespace oscar
