// SPDX-License-Identifier: MIT
#include "fuzz.hpp"
#include "tensor/pt.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return oscar::fuzz::with_file(data, size, [](const auto& path) { (void)oscar::read_pt(path); });
}
