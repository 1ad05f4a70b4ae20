// SPDX-License-Identifier: MIT
// Sets that were pulled before. sets/<manifest sha256>/ holds a set, named by its content; names/ remembers which
// content a zoo gave for a name, so that the same pull again needs no network; locks/ lets two pulls at once fetch
// once. Non-goal: eviction; the folder can be deleted at any time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "zoo/location.hpp"
#include "zoo/name.hpp"

namespace oscar {

/// OSCAR_CACHE, else $XDG_CACHE_HOME/oscar, else ~/.cache/oscar. Throws UsageError if none is set.
[[nodiscard]] std::filesystem::path default_cache_folder();

class SetCache {
 public:
  explicit SetCache(std::filesystem::path root);

  [[nodiscard]] std::filesystem::path set_folder(const std::string& manifest_sha256) const;
  [[nodiscard]] std::filesystem::path lock_file(const std::string& manifest_sha256) const;

  /// Hash of the manifest that `name` stood for when it was last pulled from `zoo`.
  [[nodiscard]] std::optional<std::string> recall(const ZooLocation& zoo, const SetName& name) const;
  void remember(const ZooLocation& zoo, const SetName& name, const std::string& manifest_sha256) const;

 private:
  [[nodiscard]] std::filesystem::path record_file(const ZooLocation& zoo, const SetName& name) const;
  std::filesystem::path root_;
};

}  // namespace oscar
