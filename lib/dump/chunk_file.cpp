// SPDX-License-Identifier: MIT
#include "dump/chunk_file.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/places.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/pt.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {

std::string chunk_suffix(std::string_view format) {
  const std::string suffix = "." + std::string(format);
  if (std::find(kChunkSuffixes.begin(), kChunkSuffixes.end(), suffix) != kChunkSuffixes.end()) return suffix;
  throw UsageError("unknown dump format \"" + std::string(format) + "\"", "--format", "use pt, h5 or safetensors");
}

namespace {

/// The HDF5 library opens files by their names.
Hdf5Reader open_hdf5(const std::filesystem::path& file) {
  if (!is_remote(file)) return Hdf5Reader(file, Hdf5Source::kOwn);
  throw DataError("an .h5 file at a server can be read only where a manifest.json tells what lies where in it",
                  file.string(), "copy the dump to disk, or write it as .pt or .safetensors");
}

}  // namespace

TensorLocation locate_chunk(const std::filesystem::path& file, const std::string& what) {
  if (file.extension() == ".h5") return open_hdf5(file).locate("/" + what);
  if (file.extension() == ".safetensors") return SafetensorsFile(file).locate(what);
  return locate_pt_tensor(file);
}

Tensor read_chunk(const std::filesystem::path& file, const std::string& what) {
  if (file.extension() == ".h5") return open_hdf5(file).read("/" + what);
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
