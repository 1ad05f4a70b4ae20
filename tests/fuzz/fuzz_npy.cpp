// SPDX-License-Identifier: MIT
#include "fuzz.hpp"
#include "tensor/npy.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return oscar::fuzz::with_text(
      data, size, [](const std::string& bytes) { (void)oscar::parse_npy(std::as_bytes(std::span(bytes)), "fuzz"); });
}
