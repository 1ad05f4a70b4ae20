// SPDX-License-Identifier: MIT
// Where a zoo is: a folder (a path or file://), a web server (http://, https://), or a bucket (s3://BUCKET/PREFIX, at
// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or Amazon's, with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
// and AWS_REGION).
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>

namespace oscar {

struct ZooLocation {
  bool remote = false;
  std::filesystem::path folder;  // absolute; if not remote
  std::string url;               // without credentials and without a trailing slash; if remote
  std::string credentials;       // "user:password" from the URL; never shown, never stored
  std::string bearer_token;      // likewise
  std::string aws_sigv4;         // how to sign requests with `credentials`, as libcurl has it; empty: not at all
  std::string session_token;     // of temporary credentials for that

  /// Names the zoo in messages and in the cache.
  [[nodiscard]] std::string text() const { return remote ? url : folder.string(); }
};

/// Value of the first of these environment variables that is set and not empty.
[[nodiscard]] std::string environment(std::initializer_list<const char*> names, const std::string& otherwise = "");

/// A path to index.json means the folder that it lies in. Throws UsageError.
[[nodiscard]] ZooLocation parse_zoo_location(const std::string& text);

/// The zoo that was installed or built with this binary; empty if there is none.
[[nodiscard]] std::filesystem::path installed_zoo();
/// OSCAR_ZOO, else the zoo that was installed or built with this binary. Throws UsageError if there is none.
[[nodiscard]] std::string default_zoo();

}  // namespace oscar
