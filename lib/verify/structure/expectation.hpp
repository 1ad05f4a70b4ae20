// SPDX-License-Identifier: MIT
// What a set is held against, and whether that is its own model.
#pragma once

#include <vector>

#include "verify/structure/checks.hpp"
#include "verify/structure/subject.hpp"
#include "verify/verify.hpp"

namespace oscar::verify {

/// The best that is known about the model: its own config, then the data's manifest, then the set's.
[[nodiscard]] Expectation expectation(const Subject& subject, const VerifyInputs& inputs);

/// Throws DataError for a dump or statistics of another model than the one that the set is measured with: they would
/// be compared with it in vain.
void require_same_model(const VerifyInputs& inputs, const Expectation& expected);

/// Whether the set says that it is of another model than what it is held against: by config.json, or by the number or
/// size of heads or layers. Of a set that does not say, the checks of its shapes tell. False where nothing but the set
/// itself is known.
[[nodiscard]] bool is_of_other_model(const Subject& subject, const Expectation& expected,
                                     const std::vector<Check>& checks);

}  // namespace oscar::verify
