// SPDX-License-Identifier: MIT
// The list of methods that stand side by side in a report.
#pragma once

#include <string>
#include <vector>

#include "codec/kv_method.hpp"
#include "peers/baselines.hpp"
#include "verify/structure/subject.hpp"

namespace oscar::verify {

/// What stands beside the set, and how.
struct Comparison {
  /// Names of peers; or "all" or "none".
  std::vector<std::string> names;
  /// The set's windows for every method, or each method's own.
  bool own_windows = false;
};

/// All names that `names` may hold, in the order of reports.
[[nodiscard]] std::vector<std::string> method_names();

/// Returns the set itself as a method, which has copies of its matrices. Clip ratios that the set does not know are the
/// published constants.
[[nodiscard]] KvMethod method_of_set(const RotationSet& set, Windows windows);

/// Peers, then the set. model: what is known of it. group_size: of the set's row codec; 0: the whole row. Throws
/// UsageError for an unknown name.
[[nodiscard]] std::vector<KvMethod> methods_beside(KvMethod set, const Comparison& comparison,
                                                   const ModelIdentity& model, int group_size);

}  // namespace oscar::verify
