// SPDX-License-Identifier: MIT
// A fuzz target gives bytes to one reader. Our errors are what a reader should answer to nonsense; everything else (a
// crash, a hang, a sanitizer's report, memory without bounds, an internal error) is a finding. libFuzzer drives the
// targets in scripts/fuzz.sh; replay.cpp runs them over the committed corpus in the ordinary tests.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/errors.hpp"

namespace oscar::fuzz {

/// Inputs that a reader took: a target that takes none of its seeds searches nothing.
inline int taken = 0;

/// Calls `read` with the path of a file in memory that holds the bytes.
template <class Reader>
int with_file(const std::uint8_t* data, std::size_t size, Reader read) {
  const int file = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (file < 0 || ::write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    read(std::filesystem::path("/proc/self/fd/" + std::to_string(file)));
    ++taken;
  } catch (const Error&) {
  }
  ::close(file);
  return 0;
}

/// The same with a file that has a name, for libraries that follow links (HDF5).
template <class Reader>
int with_named_file(const std::uint8_t* data, std::size_t size, Reader read) {
  const auto path = std::filesystem::temp_directory_path() / ("oscar-fuzz-" + std::to_string(::getpid()));
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0 || ::write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  ::close(file);
  try {
    read(path);
    ++taken;
  } catch (const Error&) {
  }
  std::filesystem::remove(path);
  return 0;
}

/// Calls `read` with the bytes as a text.
template <class Reader>
int with_text(const std::uint8_t* data, std::size_t size, Reader read) {
  try {
    read(std::string(reinterpret_cast<const char*>(data), size));
    ++taken;
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace oscar::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
