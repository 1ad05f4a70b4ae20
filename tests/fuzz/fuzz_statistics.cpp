// SPDX-License-Identifier: MIT
// Files of oscar.statistics.v1, which ranks and users hand on to each other, and those of a server's calibration.
#include "dump/server_file.hpp"
#include "fuzz.hpp"
#include "moments/statistics.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  oscar::fuzz::with_file(data, size, [](const auto& path) {
    const oscar::ServerFile file(path);
    for (const int id : file.layer_ids) (void)file.tensor(id, file.has_rows ? "k" : "M_q").to_doubles();
  });
  return oscar::fuzz::with_file(data, size, [](const auto& path) { (void)oscar::read_statistics({path}); });
}
