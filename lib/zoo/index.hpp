// SPDX-License-Identifier: MIT
// index.json of a zoo (oscar.zoo_index.v1): which sets there are, and the hash of each one's manifest, from which every
// file follows. Kept as a document, so that members which a later version added survive an update by this one.
//
// Names of sets: ORG/MODEL, ORG/MODEL:TAG, or ORG/MODEL@sha256:HEX for one exact content. Case is kept.
// Each part has letters, digits, '.', '_' and '-', at most 96 of them, starts with a letter, a digit or '_', and has no
// "..": so a name is also a safe path. Non-goal: aliases.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"

namespace oscar {

/// The tag that a name without one means. Nothing moves it by itself: it is a tag like any other.
inline constexpr char kDefaultTag[] = "latest";

struct SetName {
  std::string model;            // "ORG/MODEL"
  std::string tag;              // empty if the content is given
  std::string manifest_sha256;  // empty if the tag is given

  /// Returns the name as the user would write it: "ORG/MODEL:TAG" or "ORG/MODEL@sha256:HEX".
  [[nodiscard]] std::string text() const;
};

/// Returns where publish puts a set in a zoo: "ORG/MODEL/TAG".
[[nodiscard]] std::string published_path(const SetName& name);

/// Parses the name of a set. Throws UsageError.
[[nodiscard]] SetName parse_set_name(const std::string& text);
/// Parses the name that a set is published under, which has a tag and no hash. Throws UsageError.
[[nodiscard]] SetName parse_published_name(const std::string& text);
/// True for 64 lower-case hexadecimal digits.
[[nodiscard]] bool is_sha256(std::string_view text);

inline constexpr char kIndexName[] = "index.json";
/// Held by whoever changes a zoo in a folder.
inline constexpr char kLockName[] = ".index.lock";
inline constexpr char kIndexSchema[] = "oscar.zoo_index.v1";

struct ZooEntry {
  std::string model;  // "ORG/MODEL"
  std::string tag;
  std::string path;  // the set's folder, relative to the zoo
  std::string manifest_sha256;
  std::uint64_t manifest_size = 0;
  std::uint64_t total_size = 0;  // manifest and files
  Json summary = Json::object();
  std::string created;                 // RFC 3339, UTC
  bool forced = false;                 // published although verify had not accepted it
  std::vector<std::string> signed_by;  // public keys, for people; signature.json decides
};

class ZooIndex {
 public:
  /// Makes an index without entries.
  ZooIndex();
  /// Reads an index. Throws DataError: not JSON, another schema, malformed, unsafe names or paths, a name twice.
  ZooIndex(std::string_view text, const std::string& where);

  /// The entry with this tag, or with this content.
  [[nodiscard]] std::optional<ZooEntry> find(const SetName& name) const;
  /// Returns all entries, in the order of the document.
  [[nodiscard]] std::vector<ZooEntry> entries() const;
  /// Finds an entry as find() does, but an unknown name is a DataError that suggests known ones.
  [[nodiscard]] ZooEntry require(const SetName& name, const std::string& where) const;
  /// Adds an entry, or replaces the one with its name and tag. Entries stay sorted by name and tag.
  void put(const ZooEntry& entry);
  [[nodiscard]] const Json& document() const noexcept { return document_; }

 private:
  Json document_;
};

/// Why the manifest of the set in `folder` must stay as it is: because it is signed, or the set lies in the cache, or
/// in a zoo whose index names it. Empty if nothing of the kind is known.
[[nodiscard]] std::string why_pinned(const std::filesystem::path& folder);

}  // namespace oscar
