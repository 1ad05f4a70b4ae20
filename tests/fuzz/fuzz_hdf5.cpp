// SPDX-License-Identifier: MIT
#include "fuzz.hpp"
#include "tensor/hdf5.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using oscar::fuzz::with_named_file;
  with_named_file(data, size, [](const auto& path) { (void)oscar::Hdf5Reader(path).attribute("/", "schema"); });
  return with_named_file(data, size, [](const auto& path) {
    const oscar::Hdf5Reader file(path);
    for (const std::string& name : file.members("/")) (void)file.read("/" + name);
  });
}
