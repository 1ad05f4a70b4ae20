// SPDX-License-Identifier: MIT
#include "fuzz.hpp"
#include "tensor/gguf.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return oscar::fuzz::with_file(data, size, [](const auto& path) {
    const oscar::GgufFile file(path);
    for (const oscar::GgufTensor& tensor : file.tensors()) {
      if (tensor.type == 0) (void)file.read(tensor.name);
    }
    for (const oscar::GgufEntry& entry : file.entries()) (void)file.text(entry.key);
  });
}
