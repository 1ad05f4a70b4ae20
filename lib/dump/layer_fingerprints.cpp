// SPDX-License-Identifier: MIT
#include "dump/layer_fingerprints.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <memory>
#include <vector>

#include "base/files.hpp"
#include "base/places.hpp"
#include "base/sha256.hpp"
#include "base/threads.hpp"
#include "dump/dump_index.hpp"
#include "dump/rank_layout.hpp"

namespace oscar {
namespace {

constexpr std::uint64_t kTail = 4096;
constexpr int kRequestsAtOnce = 16;

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

std::vector<fs::path> files_of(const DumpIndex& index, int layer_id) {
  Status silent;
  std::vector<fs::path> files;
  for (const DumpChunk& chunk : index.chunks(layer_id, silent)) {
    files.insert(files.end(), {chunk.q.file, chunk.k.file, chunk.v.file});
  }
  return files;
}

/// What would be read of a dump at a server.
std::vector<std::vector<fs::path>> files_at_server(const fs::path& dump, std::span<const int> layer_ids) {
  const RankLayout layout = find_ranks(dump);
  std::vector<std::unique_ptr<DumpIndex>> indexes;
  if (layout.ranks == 0) indexes.push_back(std::make_unique<DumpIndex>(dump));
  for (int rank = 0; rank < layout.ranks && !layout.in_files; ++rank) {
    indexes.push_back(std::make_unique<DumpIndex>(layout, rank));
  }
  std::vector<std::vector<fs::path>> files;
  for (const int layer_id : layer_ids) {
    std::vector<fs::path>& own = files.emplace_back();
    for (const auto& index : indexes) std::ranges::copy(files_of(*index, layer_id), std::back_inserter(own));
    for (int rank = 0; rank < layout.ranks && layout.in_files; ++rank) own.push_back(layout.path(layer_id, rank));
  }
  return files;
}

std::string fingerprint_at_server(const std::vector<fs::path>& files) {
  Sha256 hash;
  for (const fs::path& path : files) {
    const std::unique_ptr<PlacedFile> file = open_place(path);
    const std::string version = file->version();  // first: then a byte was enough to learn the size, too
    const std::string text = path.string() + " " + std::to_string(file->bytes().size()) + " " + version + " ";
    hash.update(std::as_bytes(std::span(text)));
  }
  return hash.hex();
}

}  // namespace

std::map<int, std::string> fingerprint_layers(const fs::path& dump, std::span<const int> layer_ids) {
  const bool remote = is_remote(dump);
  std::vector<std::vector<fs::path>> files(layer_ids.size());
  if (remote) files = files_at_server(dump, layer_ids);
  for (const fs::path& file : remote ? std::vector<fs::path>() : list_files(dump)) {
    const auto found = std::ranges::find(layer_ids, layer_of(file));
    if (found != layer_ids.end()) files[static_cast<std::size_t>(found - layer_ids.begin())].push_back(file);
  }
  std::vector<std::string> prints(layer_ids.size());
  const auto print = [&](std::size_t i) {
    prints[i] = remote ? fingerprint_at_server(files[i]) : fingerprint(dump, files[i]);
  };
  parallel_for(prints.size(), print, remote ? kRequestsAtOnce : 0);
  std::map<int, std::string> all;
  for (std::size_t i = 0; i < prints.size(); ++i) all[layer_ids[i]] = prints[i];
  return all;
}

}  // namespace oscar
