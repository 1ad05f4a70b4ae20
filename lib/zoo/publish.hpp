// SPDX-License-Identifier: MIT
// Adds a set to a zoo: a folder, which any web server can then serve, or a repository of the Hugging Face Hub.
// Every file is hashed on the way. In a folder the set and then the index change atomically, under a lock; on the Hub
// both come with one commit, on top of the one whose index was read: many publishers lose nothing.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.hpp"
#include "remote/transport.hpp"
#include "set/set_folder.hpp"
#include "zoo/index.hpp"

namespace oscar {

struct PublishOptions {
  std::filesystem::path set;  // the set's folder
  std::string zoo;            // a folder, file:// or hf://
  std::string name;           // ORG/MODEL or ORG/MODEL:TAG
  /// Publish a set that verify has accepted for no reader (recorded in the index), and replace a tag that holds another
  /// set.
  bool force = false;
  /// PEM file with the Ed25519 key to sign the manifest with; empty: unsigned.
  std::filesystem::path sign;
  TransferOptions transfer;
};

struct PublishResult {
  std::string name;  // ORG/MODEL:TAG
  std::string path;  // of the set's folder, or its address
  ZooEntry entry;
  bool changed = false;  // false: the zoo had exactly this already
};

/// examine: looks at the set before anything is written; throws DataError for one that contradicts itself.
[[nodiscard]] PublishResult publish(const PublishOptions& options, Status& status, const ExamineSet& examine);

}  // namespace oscar
