// SPDX-License-Identifier: MIT
// A set that is small, valid, and different for every seed.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "base/json.hpp"

namespace oscar::test {

/// Path in the set -> content, with the manifest. verdict: of verify, for vllm; of llamacpp it says nothing; empty: not
/// verified.
[[nodiscard]] std::map<std::string, std::string> sample_set(const std::string& seed, const std::string& verdict);
/// The manifest of sample_set, for changing.
[[nodiscard]] Json sample_manifest(const std::string& seed);
void write_set(const std::filesystem::path& folder, const std::map<std::string, std::string>& files);

/// For pull and publish: content that is no real set will do.
inline void any_set(const std::filesystem::path&) {}

}  // namespace oscar::test
