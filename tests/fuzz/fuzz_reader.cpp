// SPDX-License-Identifier: MIT
// OSCAR_FUZZ_READER names the reader of fuzz_formats.cpp that this is the target of.
#include <cstddef>
#include <cstdint>

namespace oscar::fuzz {
int OSCAR_FUZZ_READER(const std::uint8_t* data, std::size_t size);
}  // namespace oscar::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return oscar::fuzz::OSCAR_FUZZ_READER(data, size);
}
