// SPDX-License-Identifier: MIT
#include <vector>

#include "fuzz.hpp"
#include "tensor/ggml_blocks.hpp"
#include "tensor/gguf.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return oscar::fuzz::with_file(data, size, [](const auto& path) {
    const oscar::GgufFile file(path);
    for (const oscar::GgufTensor& tensor : file.tensors()) {
      if (tensor.type == 0) (void)file.read(tensor.name);
      const oscar::GgmlType* type = oscar::find_ggml_type(tensor.type);
      if (type == nullptr || !oscar::can_dequantize(tensor.type)) continue;
      const std::size_t blocks = tensor.data.size() / type->bytes;
      std::vector<float> values(blocks * type->values);
      oscar::dequantize(tensor.type, tensor.data.first(blocks * type->bytes), values);
    }
    for (const oscar::GgufEntry& entry : file.entries()) {
      (void)file.text(entry.key);
      (void)file.value(entry.key);
    }
  });
}
