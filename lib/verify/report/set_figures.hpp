// SPDX-License-Identifier: MIT
// What people look at of a set, without any data: spectra, clip ratios, and which channels of a coded set got which
// bits.
#pragma once

#include <vector>

#include "coded/coded_set.hpp"
#include "verify/report/report.hpp"
#include "verify/structure/subject.hpp"

namespace oscar::verify {

/// Returns the eigenvalues of every layer and side that carries some which are not all the same, means over heads.
[[nodiscard]] std::vector<Spectra> spectra_of(const Subject& subject);
/// Returns the clip ratios of every layer; empty if the set does not say them, or has one side only.
[[nodiscard]] std::vector<LayerClips> clips_of(const Subject& subject);

/// Returns the bits of keys and values of each layer, head by head.
[[nodiscard]] std::vector<HeadPlan> plan_of(const CodedSet& set);
/// Returns the variances of coded channels as eigenvalues stand in the report. A side of which a head has none is left
/// out.
[[nodiscard]] std::vector<Spectra> spectra_of(const CodedSet& set);

}  // namespace oscar::verify
