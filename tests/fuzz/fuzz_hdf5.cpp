// SPDX-License-Identifier: MIT
#include "fuzz.hpp"
#include "tensor/hdf5.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return oscar::fuzz::with_file(data, size, [](const auto& path) {
    const oscar::Hdf5Reader file(path);
    if (file.has_attribute("/", "schema")) (void)file.attribute("/", "schema");
    for (const std::string& name : file.members("/")) (void)file.read("/" + name);
  });
}
