// SPDX-License-Identifier: MIT
// Open files of the operating system, and how its refusals become errors. For lib/base only.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

namespace oscar {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&&) = delete;
  [[nodiscard]] int get() const noexcept { return value_; }
  [[nodiscard]] int release() noexcept { return std::exchange(value_, -1); }

 private:
  int value_;
};

/// Throws IoError: what failed, the system's words for `error` (errno), and what helps against it.
[[noreturn]] void throw_io(const std::string& what, const std::filesystem::path& path, int error);

}  // namespace oscar
