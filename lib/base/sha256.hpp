// SPDX-License-Identifier: MIT
// SHA-256 (FIPS 180-4, by OpenSSL) of bytes and of files, as 64 lower-case hexadecimal digits.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace oscar {

/// Incremental: update() any number of times, then hex() once.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] std::string sha256_hex(std::string_view text);
/// Returns the SHA-256 of a file as 64 hex digits. Throws DataError or IoError as read_text does, Interrupted.
[[nodiscard]] std::string sha256_file(const std::filesystem::path& path);

/// Returns what git calls a file with this content: SHA-1 of "blob <size>\0" and the content, as 40 digits.
[[nodiscard]] std::string git_blob_sha1(std::string_view content);

}  // namespace oscar
