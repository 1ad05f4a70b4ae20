// SPDX-License-Identifier: MIT
// The judge of sets of the coded cache: as verify_rotations, with checks of what such a set is made of.
#pragma once

#include <filesystem>

#include "verify/report/report.hpp"
#include "verify/verify.hpp"

namespace oscar::verify {

/// set: a folder that is_coded_set(). Throws what verify_rotations throws.
[[nodiscard]] VerifyReport verify_coded(const std::filesystem::path& set, const VerifyInputs& inputs,
                                        const VerifyOptions& options, Backend& backend, Status& status);

}  // namespace oscar::verify
