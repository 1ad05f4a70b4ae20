// SPDX-License-Identifier: MIT
#include "dump/chunk_file.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/pt.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {

std::string chunk_suffix(std::string_view format) {
  const std::string suffix = "." + std::string(format);
  if (std::find(kChunkSuffixes.begin(), kChunkSuffixes.end(), suffix) != kChunkSuffixes.end()) return suffix;
  throw UsageError("unknown dump format \"" + std::string(format) + "\"", "--format", "use pt, h5 or safetensors");
}

TensorLocation locate_chunk(const std::filesystem::path& file, const std::string& what) {
  if (file.extension() == ".h5") return Hdf5Reader(file, Hdf5Source::kOwn).locate("/" + what);
  if (file.extension() == ".safetensors") return SafetensorsFile(file).locate(what);
  return locate_pt_tensor(file);
}

Tensor read_chunk(const std::filesystem::path& file, const std::string& what) {
  if (file.extension() == ".h5") return Hdf5Reader(file, Hdf5Source::kOwn).read("/" + what);
  if (file.extension() == ".safetensors") return SafetensorsFile(file).load(what);
  return read_pt_tensor(file);
}

void write_chunk(const std::filesystem::path& file, const std::string& what, const Tensor& tensor) {
  if (file.extension() == ".h5") {
    Hdf5Writer writer(file);
    writer.write("/" + what, tensor);
    writer.commit();
  } else if (file.extension() == ".safetensors") {
    write_safetensors(file, {{what, tensor}}, {});
  } else {
    write_pt(file, {tensor});
  }
}

}  // namespace oscar
