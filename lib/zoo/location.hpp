// SPDX-License-Identifier: MIT
// Where a zoo is: a folder (a path or file://) or a web server (http://, https://).
#pragma once

#include <filesystem>
#include <string>

namespace oscar {

struct ZooLocation {
  bool remote = false;
  std::filesystem::path folder;  // absolute; if not remote
  std::string url;               // without credentials and without a trailing slash; if remote
  std::string credentials;       // "user:password" from the URL; never shown, never stored
  std::string bearer_token;      // likewise

  /// Names the zoo in messages and in the cache.
  [[nodiscard]] std::string text() const { return remote ? url : folder.string(); }
};

/// A path to index.json means the folder that it lies in. Throws UsageError.
[[nodiscard]] ZooLocation parse_zoo_location(const std::string& text);

/// OSCAR_ZOO, else the zoo that was installed or built with this binary. Throws UsageError if there is none.
[[nodiscard]] std::string default_zoo();

}  // namespace oscar
