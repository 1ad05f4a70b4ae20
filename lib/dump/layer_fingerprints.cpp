// SPDX-License-Identifier: MIT
#include "dump/layer_fingerprints.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/threads.hpp"

namespace oscar {
namespace {

constexpr std::uint64_t kTail = 4096;

/// Of layer_3/q/1.pt, layer_3_rank0/q/1.pt or layer_3_rank0.pt; -1 for other paths.
int layer_of(const fs::path& path) {
  const std::string first = path.begin()->string();
  constexpr std::string_view kStart = "layer_";
  int id = -1;
  if (first.starts_with(kStart)) std::from_chars(first.data() + kStart.size(), first.data() + first.size(), id);
  return id;
}

std::string fingerprint(const fs::path& dump, const std::vector<fs::path>& files) {
  if (files.empty()) return "";
  Sha256 hash;
  std::vector<std::byte> tail;
  for (const fs::path& file : files) {
    const std::uint64_t size = regular_file_size(dump / file);
    const std::string name = file.generic_string() + " " + std::to_string(size) + " ";
    hash.update(std::as_bytes(std::span(name)));
    tail.resize(std::min(size, kTail));
    read_at(dump / file, size - tail.size(), tail);
    hash.update(tail);
  }
  return hash.hex();
}

}  // namespace

std::map<int, std::string> fingerprint_layers(const fs::path& dump, std::span<const int> layer_ids) {
  std::vector<std::vector<fs::path>> files(layer_ids.size());
  for (const fs::path& file : list_files(dump)) {
    const auto found = std::ranges::find(layer_ids, layer_of(file));
    if (found != layer_ids.end()) files[static_cast<std::size_t>(found - layer_ids.begin())].push_back(file);
  }
  std::vector<std::string> prints(layer_ids.size());
  parallel_for(prints.size(), [&](std::size_t i) { prints[i] = fingerprint(dump, files[i]); });
  std::map<int, std::string> all;
  for (std::size_t i = 0; i < prints.size(); ++i) all[layer_ids[i]] = prints[i];
  return all;
}

}  // namespace oscar
