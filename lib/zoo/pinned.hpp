// SPDX-License-Identifier: MIT
// Sets whose manifest others know by its hash: changing a byte of it would make them other sets.
#pragma once

#include <filesystem>
#include <string>

namespace oscar {

/// Why the manifest of the set in `folder` must stay as it is: because it is signed, or the set lies in the cache, or
/// in a zoo whose index names it. Empty if nothing of the kind is known.
[[nodiscard]] std::string why_pinned(const std::filesystem::path& folder);

}  // namespace oscar
