// SPDX-License-Identifier: MIT
// Adds a rotation set to a zoo in a folder, which any web server can then serve. Every file is hashed while it is
// copied; the set and then the index change atomically, under a lock, so that many publishers lose nothing. Non-goal:
// uploads.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.hpp"
#include "zoo/index.hpp"

namespace oscar {

struct PublishOptions {
  std::filesystem::path set;  // the set's folder
  std::string zoo;            // a folder, or file://
  std::string name;           // ORG/MODEL or ORG/MODEL:TAG
  /// Publish a set that verify has not accepted (recorded in the index), and replace a tag that holds another set.
  bool force = false;
  /// PEM file with the Ed25519 key to sign the manifest with; empty: unsigned.
  std::filesystem::path sign;
};

struct PublishResult {
  std::string name;  // ORG/MODEL:TAG
  std::filesystem::path path;
  ZooEntry entry;
  bool changed = false;  // false: the zoo had exactly this already
};

[[nodiscard]] PublishResult publish(const PublishOptions& options, Status& status);

}  // namespace oscar
