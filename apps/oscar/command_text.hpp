// SPDX-License-Identifier: MIT
// The command line as it may be shown to others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oscar {

/// `argument` without user names, passwords, queries and fragments of the addresses in it:
/// https://me:secret@host/x?token=1 becomes https://host/x.
[[nodiscard]] std::string without_secrets(std::string_view argument);

/// "oscar verify 'my set' --model https://host/x": for a POSIX shell, without secrets. arguments: those after the
/// program's name.
[[nodiscard]] std::string command_text(const std::vector<std::string>& arguments);

}  // namespace oscar
