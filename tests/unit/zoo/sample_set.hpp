// SPDX-License-Identifier: MIT
// A set that is small, valid, and different for every seed; and a zoo in memory that can misbehave.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/status.hpp"
#include "remote/transport.hpp"

namespace oscar::test {

/// Path in the set -> content, with the manifest. verdict: of verify, for vllm; of llamacpp it says nothing; empty: not
/// verified.
[[nodiscard]] std::map<std::string, std::string> sample_set(const std::string& seed, const std::string& verdict);
/// The manifest of sample_set, for changing.
[[nodiscard]] Json sample_manifest(const std::string& seed);
void write_set(const std::filesystem::path& folder, const std::map<std::string, std::string>& files);
/// Path -> content of everything under `folder`.
[[nodiscard]] std::map<std::string, std::string> read_folder(const std::filesystem::path& folder);

/// For pull and publish: content that is no real set will do.
inline void any_set(const std::filesystem::path&) {}

/// Serves `files`; counts what is asked for; before each answer calls `before`, which may throw.
struct FakeZoo {
  std::map<std::string, std::string> files;
  std::vector<std::string> asked;
  std::function<void(const std::string& path)> before = [](const std::string&) {};

  /// Adds a set to the files, and to the index under ORG/MODEL:TAG.
  void add(const std::string& model, const std::string& tag, const std::map<std::string, std::string>& set);
  [[nodiscard]] TransportFactory factory();
};

/// Status that keeps what it is told.
struct RecordedStatus : Status {
  std::vector<std::string> notices, warnings;
  std::vector<std::int64_t> steps;
  void progress(const std::string&, std::int64_t done, std::int64_t) override { steps.push_back(done); }
  void notice(const std::string& text) override { notices.push_back(text); }
  void warning(const std::string& text) override { warnings.push_back(text); }
};

}  // namespace oscar::test
