// SPDX-License-Identifier: MIT
#include "fuzz.hpp"
#include "tensor/npz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return oscar::fuzz::with_file(data, size, [](const auto& path) {
    const oscar::NpzFile file(path);
    for (const auto& [name, bytes] : file.members()) {
      if (name.ends_with(".npy")) (void)file.read(name.substr(0, name.size() - 4));
    }
  });
}
