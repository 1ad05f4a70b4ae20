// SPDX-License-Identifier: MIT
// A whole set: its manifest against its rotations.h5. The input is the length of the manifest (4 bytes, little endian),
// the manifest, and the bytes of rotations.h5. Hashes are not compared: whoever makes such a folder makes them fit.
#include <algorithm>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "fuzz.hpp"
#include "set/formats.hpp"

namespace {

/// A folder of this process; its files are written anew for every input.
std::filesystem::path folder_of_set() {
  auto folder = std::filesystem::temp_directory_path() / ("oscar-fuzz-set-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  return folder;
}

struct Folder {
  const std::filesystem::path path = folder_of_set();
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kHead = 4;
  if (size < kHead) return 0;
  const std::size_t claimed = data[0] | data[1] << 8U | data[2] << 16U | std::size_t{data[3]} << 24U;
  const std::string_view all(reinterpret_cast<const char*>(data) + kHead, size - kHead);
  const std::size_t split = std::min(claimed, all.size());
  static const Folder folder;
  oscar::write_unsynced(folder.path / "manifest.json", all.substr(0, split));
  oscar::write_unsynced(folder.path / "rotations.h5", all.substr(split));
  try {
    const oscar::RotationPart set = oscar::read_rotation_set(folder.path, oscar::ListedFiles::kChecked);
    // What was read is what the manifest declares: a matrix of its size for every layer and side.
    for (const oscar::LayerRotation& layer : set.layers) {
      for (const oscar::SideTransform* side : {&layer.key, &layer.value}) {
        const oscar::MatrixStack& rotation = side->rotation;
        const auto dim = static_cast<std::size_t>(rotation.dim);
        if (rotation.count < 1 || rotation.data.size() != static_cast<std::size_t>(rotation.count) * dim * dim)
          std::abort();
      }
    }
    ++oscar::fuzz::taken;
  } catch (const oscar::Error&) {
  }
  return 0;
}
