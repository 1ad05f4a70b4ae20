// SPDX-License-Identifier: MIT
// The list of methods that stand side by side in a report.
#pragma once

#include <string>
#include <vector>

#include "measure/kv_method.hpp"
#include "measure/peers/baselines.hpp"
#include "verify/verify.hpp"

namespace oscar::verify {

/// All names of methods, in the order of reports.
[[nodiscard]] std::vector<std::string> method_names();

/// The methods that the options name, then the parts of the set, in its windows or their own. model: what is known of
/// it. group_size: of the set's row codec; 0: the whole row. Throws UsageError for an unknown name.
[[nodiscard]] std::vector<KvMethod> methods_beside(std::vector<KvMethod> parts, const VerifyOptions& options,
                                                   const ModelIdentity& model, int group_size);

/// Adds an entry without figures for each method.
void list_methods(VerifyReport& report, const std::vector<KvMethod>& methods);

}  // namespace oscar::verify
