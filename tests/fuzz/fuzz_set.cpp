// SPDX-License-Identifier: MIT
// A whole set: its manifest against rotations.h5, which lies where parts with rotations and the coded cache have their
// files. The input is the length of the manifest (4 bytes, little endian),
// the manifest, and the bytes of rotations.h5. Hashes are not compared: whoever makes such a folder makes them fit.
#include <algorithm>

#include "base/files.hpp"
#include "fuzz.hpp"
#include "set/set_folder.hpp"

namespace {

/// A folder of this process; its files are written anew for every input.
std::filesystem::path folder_of_set() {
  auto folder = std::filesystem::temp_directory_path() / ("oscar-fuzz-set-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder / oscar::kWithMeansName);
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
  for (const char* file : {"rotations.h5", "with_means/rotations.h5", oscar::kCodedFile}) {
    oscar::write_unsynced(folder.path / file, all.substr(split));
  }
  try {
    const oscar::Set set = oscar::read_set(folder.path, oscar::ListedFiles::kChecked);
    // What was read is what the manifest declares: a matrix of its size for every layer and side.
    const auto require_whole = [](const oscar::MatrixStack& stack) {
      const auto dim = static_cast<std::size_t>(stack.dim);
      if (stack.count < 1 || stack.data.size() != static_cast<std::size_t>(stack.count) * dim * dim) std::abort();
    };
    for (const auto& [name, part] : set.rotations) {
      for (const oscar::LayerRotation& layer : part.layers) {
        require_whole(layer.key.rotation), require_whole(layer.value.rotation);
      }
    }
    for (const oscar::CodedLayer& layer : set.coded ? set.coded->layers : std::vector<oscar::CodedLayer>()) {
      require_whole(layer.key.transform.rotation), require_whole(layer.value.transform.rotation);
    }
    ++oscar::fuzz::taken;
  } catch (const oscar::Error&) {
  }
  return 0;
}
