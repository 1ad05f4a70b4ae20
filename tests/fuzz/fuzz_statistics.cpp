// SPDX-License-Identifier: MIT
// Files of oscar.statistics.v1, which ranks and users hand on to each other.
#include "fuzz.hpp"
#include "moments/statistics.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return oscar::fuzz::with_file(data, size, [](const auto& path) { (void)oscar::read_statistics({path}); });
}
