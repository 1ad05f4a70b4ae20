// SPDX-License-Identifier: MIT
// What people look at of a coded set: which channels got which bits, and the variances that they were planned by.
#pragma once

#include <vector>

#include "coded/coded_set.hpp"
#include "verify/report.hpp"

namespace oscar::verify {

/// Keys and values of each layer, head by head.
[[nodiscard]] std::vector<HeadPlan> plan_of(const CodedSet& set);
/// The variances of coded channels as eigenvalues stand in the report. A side of which a head has none is left out.
[[nodiscard]] std::vector<Spectra> spectra_of(const CodedSet& set);

}  // namespace oscar::verify
