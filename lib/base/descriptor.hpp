// SPDX-License-Identifier: MIT
// What reading and writing of files share: an open file, and the error that the operating system gave. For base/ only.
#pragma once

#include <filesystem>
#include <string>

namespace oscar {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const noexcept { return value_; }
  /// The caller closes it.
  [[nodiscard]] int release() noexcept;

 private:
  int value_;
};

/// Throws IoError: what failed, the system's words for `error` (errno), and what helps against it.
[[noreturn]] void throw_io(const std::string& what, const std::filesystem::path& path, int error);

}  // namespace oscar
