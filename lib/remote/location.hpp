// SPDX-License-Identifier: MIT
// Where files lie: a folder (a path or file://) or a web server (http://, https://).
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>

namespace oscar {

struct StoreLocation {
  bool remote = false;
  std::filesystem::path folder;  // absolute; if not remote
  std::string url;               // without credentials and without a trailing slash; if remote
  std::string credentials;       // "user:password" from the URL; never shown, never stored
  std::string bearer_token;      // likewise

  /// Names the place in messages and in caches.
  [[nodiscard]] std::string text() const { return remote ? url : folder.string(); }
};

/// Value of the first of these environment variables that is set and not empty.
[[nodiscard]] std::string environment(std::initializer_list<const char*> names, const std::string& otherwise = "");

/// What a UsageError says where a text is no location: the option that it was given for, and what to give.
struct AskedFor {
  std::string option;
  std::string remedy = "give a folder, file:///…, http://… or https://…";
};
/// Throws UsageError.
[[nodiscard]] StoreLocation parse_location(const std::string& text, const AskedFor& asked);

/// "%41" -> "A". Throws UsageError for a code that is none, or is that of a null byte.
[[nodiscard]] std::string percent_decoded(const std::string& text, const AskedFor& asked);

}  // namespace oscar
