// SPDX-License-Identifier: MIT
// The readers of file formats, each of which is a target of its own by fuzz_reader.cpp.
#include <vector>

#include "fuzz.hpp"
#include "tensor/ggml_blocks.hpp"
#include "tensor/gguf.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/npy.hpp"
#include "tensor/pt.hpp"
#include "tensor/safetensors.hpp"

namespace oscar::fuzz {

int read_gguf(const std::uint8_t* data, std::size_t size) {
  return with_file(data, size, [](const auto& path) {
    const GgufFile file(path);
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensor.type == 0) (void)file.read(tensor.name);
      const GgmlType* type = find_ggml_type(tensor.type);
      if (type == nullptr || !can_dequantize(tensor.type)) continue;
      const std::size_t blocks = tensor.data.size() / type->bytes;
      std::vector<float> values(blocks * type->values);
      dequantize(tensor.type, tensor.data.first(blocks * type->bytes), values);
    }
    for (const GgufEntry& entry : file.entries()) {
      (void)file.text(entry.key);
      (void)file.value(entry.key);
    }
  });
}

int read_hdf5(const std::uint8_t* data, std::size_t size) {
  with_named_file(data, size, [](const auto& path) { (void)Hdf5Reader(path).attribute("/", "schema"); });
  return with_named_file(data, size, [](const auto& path) {
    const Hdf5Reader file(path);
    for (const std::string& name : file.members("/")) (void)file.read("/" + name);
  });
}

int read_npy(const std::uint8_t* data, std::size_t size) {
  return with_text(data, size,
                   [](const std::string& bytes) { (void)parse_npy(std::as_bytes(std::span(bytes)), "fuzz"); });
}

int read_pt(const std::uint8_t* data, std::size_t size) {
  with_file(data, size, [](const auto& path) { (void)oscar::locate_pt(path); });
  return with_file(data, size, [](const auto& path) { (void)oscar::read_pt(path); });
}

int read_safetensors(const std::uint8_t* data, std::size_t size) {
  return with_file(data, size, [](const auto& path) {
    const SafetensorsFile file(path);
    for (const auto& [name, tensor] : file.tensors()) (void)tensor.copy();
  });
}

}  // namespace oscar::fuzz
