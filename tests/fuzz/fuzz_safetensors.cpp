// SPDX-License-Identifier: MIT
#include "fuzz.hpp"
#include "tensor/safetensors.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return oscar::fuzz::with_file(data, size, [](const auto& path) {
    const oscar::SafetensorsFile file(path);
    for (const auto& [name, tensor] : file.tensors()) (void)tensor.copy();
  });
}
