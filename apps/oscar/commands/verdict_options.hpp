// SPDX-License-Identifier: MIT
// The options of verify that say what rejects a set.
#pragma once

#include <CLI/CLI.hpp>

#include "verify/verify.hpp"

namespace oscar {

/// The group "Verdict". options: must outlive the command.
void add_verdict_options(CLI::App& command, VerifyOptions& options);

}  // namespace oscar
