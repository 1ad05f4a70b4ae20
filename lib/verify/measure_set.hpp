// SPDX-License-Identifier: MIT
// Measures a set beside other methods, on whatever data is at hand, and writes what it finds into a report.
#pragma once

#include <vector>

#include "codec/kv_method.hpp"
#include "verify/report/report.hpp"
#include "verify/structure/subject.hpp"
#include "verify/verify.hpp"

namespace oscar::verify {

/// Throws DataError for texts, needles or quotations of which next to nothing is outside the windows.
void require_quantised_texts(const ModelData& data, Windows windows);

/// Adds an entry without figures for each method.
void list_methods(VerifyReport& report, const std::vector<KvMethod>& methods);

/// Adds attention metrics, moments and model metrics of `methods`, the last of which is the set, to report.methods,
/// which has an entry for each. subject: the set; without sides where it has no rotations whose moments could be
/// checked.
void measure_set(VerifyReport& report, const Subject& subject, const std::vector<KvMethod>& methods,
                 const VerifyInputs& inputs, const VerifyOptions& options, Backend& backend, Status& status);

}  // namespace oscar::verify
