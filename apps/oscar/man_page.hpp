// SPDX-License-Identifier: MIT
// oscar(1), made of the commands and options as they are registered: the same words as --help.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace oscar {

/// The page in roff, with the man macros.
[[nodiscard]] std::string man_page(CLI::App& app);

}  // namespace oscar
