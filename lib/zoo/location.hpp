// SPDX-License-Identifier: MIT
// Where a zoo is, and which one is taken where nobody names one.
#pragma once

#include <filesystem>
#include <string>

#include "remote/location.hpp"

namespace oscar {

/// Parses where a zoo is; a path to index.json means the folder that it lies in. Throws UsageError.
[[nodiscard]] StoreLocation parse_zoo_location(const std::string& text);

/// The zoo that was installed or built with this binary; empty if there is none.
[[nodiscard]] std::filesystem::path installed_zoo();
/// OSCAR_ZOO, else the zoo that was installed or built with this binary. Throws UsageError if there is none.
[[nodiscard]] std::string default_zoo();

}  // namespace oscar
