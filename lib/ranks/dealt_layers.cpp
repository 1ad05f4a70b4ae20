// SPDX-License-Identifier: MIT
#include "ranks/dealt_layers.hpp"

#include <chrono>
#include <utility>
#include <vector>

#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "moments/blocks.hpp"

namespace oscar {
namespace {

/// Where finished layers are kept, as this process sees it.
struct SharedFolder {
  PartialFolder folder;
  bool shared;  // it is rank 0's
};

/// Rank 0 begins the folder, or goes on with it; a process that does not see that folder begins one of its own.
SharedFolder open_together(const DealtWork& work, Ranks& ranks, Status& status) {
  using Earlier = PartialFolder::Earlier;
  const std::filesystem::path mark = work.folder / "rank_0";
  if (ranks.rank() == 0) {
    PartialFolder folder(work.folder, work.record, work.resume ? Earlier::kUse : Earlier::kReplace, &status);
    const std::string name = std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
    write_file(mark, name);
    ranks.put("folder", name);
    return {std::move(folder), true};
  }
  const std::string name = ranks.get("folder");
  const bool shared = std::filesystem::exists(mark) && read_text(mark) == name;
  return {PartialFolder(work.folder, work.record, shared ? Earlier::kLeave : Earlier::kReplace), shared};
}

/// Layers that rank 0's folder lacks.
std::vector<int> missing_layers(const std::vector<int>& all, const PartialFolder& folder, Ranks& ranks) {
  if (ranks.rank() == 0) {
    std::vector<int> missing = all;
    std::erase_if(missing, [&](int id) { return folder.has(id); });
    ranks.put("missing", Json(missing).dump());
  }
  return parse_json(ranks.get("missing"), "the layers of rank 0").get<std::vector<int>>();
}

/// Layers that rank `rank` of `size` makes: they are dealt like cards.
std::vector<int> share_of(const std::vector<int>& layers, int rank, int size) {
  std::vector<int> own;
  for (auto i = static_cast<std::size_t>(rank); i < layers.size(); i += static_cast<std::size_t>(size)) {
    own.push_back(layers[i]);
  }
  return own;
}

std::string key_of(int layer_id) { return "layer/" + std::to_string(layer_id); }

/// Layers of the others, which rank 0's folder may lack: it need not be one that they share.
void collect(const std::vector<int>& missing, const PartialFolder& folder, Ranks& ranks) {
  for (int rank = 1; rank < ranks.size(); ++rank) {
    for (const int id : share_of(missing, rank, ranks.size())) {
      write_file(folder.file_of(id), ranks.take(key_of(id)));
    }
  }
}

}  // namespace

std::optional<PartialFolder> make_together(const DealtWork& work, QkvSource& source, Ranks& ranks, Status& status) {
  Json alike = work.record;
  alike.update(work.arithmetic);
  require_same("work", alike, ranks);
  SharedFolder together = open_together(work, ranks, status);
  const std::vector<int> missing = missing_layers(source.layer_ids(), together.folder, ranks);
  const std::vector<int> own = share_of(missing, ranks.rank(), ranks.size());
  work.make(source.deal(missing) ? missing : own, together.folder);
  if (ranks.rank() == 0) {
    collect(missing, together.folder, ranks);
    return std::move(together.folder);
  }
  for (const int id : own) ranks.put(key_of(id), read_text(together.folder.file_of(id)));
  if (!together.shared) together.folder.remove();  // rank 0 has it all
  return std::nullopt;
}

void require_same(const std::string& key, const Json& what, Ranks& ranks) {
  if (ranks.rank() == 0) ranks.put(key, what.dump());
  const Json first = parse_json(ranks.get(key), "what rank 0 does"), own = parse_json(what.dump(), "");
  if (first == own) return;
  throw DataError("rank " + std::to_string(ranks.rank()) +
                      " has other data or options than rank 0: " + PartialFolder::differences(first, own),
                  "oscar fit",
                  "start all ranks with the same command, where all see the same files and have GPUs or none");
}

TextShare share_of_text(Ranks& ranks, std::function<WorkShape()> work_shape) {
  return {
      .rank = ranks.rank(),
      .size = ranks.size(),
      .put = [&ranks](const std::string& key, const std::string& value) { ranks.put(key, value); },
      .take = [&ranks](const std::string& key) { return ranks.take(key); },
      .choose = [&ranks, work_shape = std::move(work_shape)](
                    const auto& layers) { return chunks_of_rank(layers, work_shape(), ranks.rank(), ranks.size()); }};
}

}  // namespace oscar
