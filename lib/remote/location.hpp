// SPDX-License-Identifier: MIT
// Where files lie: a folder (a path or file://) or a web server (http://, https://).
#pragma once

#include <filesystem>
#include <string>

namespace oscar {

struct StoreLocation {
  bool remote = false;
  std::filesystem::path folder;  // absolute; if not remote
  std::string url;               // without a trailing slash; if remote
  std::string bearer_token;      // sent to the location's own host; never shown, never stored

  /// Names the place in messages and in caches.
  [[nodiscard]] std::string text() const { return remote ? url : folder.string(); }
};

/// Value of this environment variable, if it is set and not empty.
[[nodiscard]] std::string environment(const char* name, const std::string& otherwise = "");

/// What a UsageError says where a text is no location: the option that it was given for, and what to give.
struct AskedFor {
  std::string option;
  std::string remedy = "give a folder, file:///…, http://… or https://…";
};
/// Throws UsageError, also for an address with a user or password, which it does not show.
[[nodiscard]] StoreLocation parse_location(const std::string& text, const AskedFor& asked);

/// Whether a password or token may be sent there: over TLS, or to this machine.
[[nodiscard]] bool may_see_secrets(const std::string& url);

/// "a" + "b" -> "a/b"; "" + "b" -> "b"; "a" + "" -> "a".
[[nodiscard]] std::string join_path(const std::string& prefix, const std::string& path);
/// Everything but RFC 3986's unreserved characters, and slashes if they stay, as %XX: a path from an index cannot grow
/// a query or a host (curl_handle.cpp).
[[nodiscard]] std::string percent_encoded(const std::string& path, bool slashes_stay = true);
/// "%41" -> "A". Throws UsageError for a code that is none, or is that of a null byte.
[[nodiscard]] std::string percent_decoded(const std::string& text, const AskedFor& asked);

}  // namespace oscar
