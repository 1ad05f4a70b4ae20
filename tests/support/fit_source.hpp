// SPDX-License-Identifier: MIT
// Fits of a source at once, as the program does them in two steps.
#pragma once

#include "fit/fit.hpp"
#include "fit/take.hpp"

namespace oscar::test {

inline Set fit_source(QkvSource& source, const FitOptions& options, Backend& backend, Status& status) {
  return fit(take({source}, options, {}, backend, status), options, backend, status);
}

/// Of a recipe that makes one part.
inline RotationPart fit_rotations_of(QkvSource& source, const FitOptions& options, Backend& backend, Status& status) {
  return fit_source(source, options, backend, status).rotations.begin()->second;
}

}  // namespace oscar::test
