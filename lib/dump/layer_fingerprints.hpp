// SPDX-License-Identifier: MIT
// Whether layers of a dump are what they were, told without reading them: by the names, the sizes and the last 4 KB of
// their files, where archives keep their directory with its checksums. Non-goal: finding damage.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

namespace oscar {

/// Returns a fingerprint of each layer's files, for every layout that open_dump() reads; "" for a layer without files.
/// Throws IoError.
[[nodiscard]] std::map<int, std::string> fingerprint_layers(const std::filesystem::path& dump,
                                                            std::span<const int> layer_ids);

}  // namespace oscar
