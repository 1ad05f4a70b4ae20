// SPDX-License-Identifier: MIT
// The list of methods that stand side by side in a report.
#pragma once

#include <string>
#include <vector>

#include "codec/kv_method.hpp"
#include "verify/subject.hpp"

namespace oscar::verify {

/// Baselines named by `compare` ("all", "none", or names), then the set under test, all with the same windows. A set
/// that does not know its clip ratios gets the published constants.
[[nodiscard]] std::vector<KvMethod> methods_for(const Subject& subject, const std::vector<std::string>& compare,
                                                Windows windows);

}  // namespace oscar::verify
