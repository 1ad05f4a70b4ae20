// SPDX-License-Identifier: MIT
#include "moments/shards.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/sha256.hpp"

namespace oscar {
namespace {

bool is_shard(const StatisticsPart& part) { return !part.manifest.heads.whole(); }

/// Ranks of one run: the same data of the same heads in all.
bool same_run(const StatisticsPart& a, const StatisticsPart& b) {
  return is_shard(a) && is_shard(b) && a.manifest.data == b.manifest.data &&
         a.manifest.heads.total == b.manifest.heads.total;
}

[[noreturn]] void refuse(const std::string& what, const StatisticsPart& a, const StatisticsPart& b) {
  throw DataError(what, a.name() + " and " + b.name(), "give one file of each tensor-parallel rank");
}

void append(std::vector<double>& to, const std::vector<double>& from) { to.insert(to.end(), from.begin(), from.end()); }

void append(MatrixStack& to, const MatrixStack& from) {
  to.count += from.count;
  append(to.data, from.data);
}

void append(MomentSums& to, const MomentSums& from) {
  append(to.sums, from.sums);
  append(to.total, from.total);
}

void append(FisherSums& to, const FisherSums& from) {
  append(to.query, from.query), append(to.key, from.key);
  append(to.key_sum, from.key_sum), append(to.weight, from.weight);
}

/// The next heads of the same layer.
void append(LayerStatistics& to, const LayerStatistics& from, const std::string& where) {
  const auto require = [&](bool same, const char* what) {
    if (!same) throw DataError(what, where, "save the states of all ranks after the same text");
  };
  require(to.layer_id == from.layer_id && to.key_dim == from.key_dim && to.value_dim == from.value_dim,
          "another layer, or another head dimension, than in the rank before");
  require(to.first.sums.size() == from.first.sums.size() && to.sst.has_value() == from.sst.has_value() &&
              to.first.keys.has_value() == from.first.keys.has_value() &&
              to.first.fisher.has_value() == from.first.fisher.has_value(),
          "other sums than in the rank before");
  for (auto& [moment, sums] : to.first.sums) {
    require(from.first.sums.contains(moment), "other sums than in the rank before");
    append(sums, from.first.sums.at(moment));
  }
  if (to.first.keys) {
    require(to.first.keys->tokens == from.first.keys->tokens, "another number of tokens than in the rank before");
    append(to.first.keys->sums, from.first.keys->sums);
  }
  if (to.first.fisher) append(*to.first.fisher, *from.first.fisher);
  if (to.sst) append(*to.sst, *from.sst);
}

/// Checks that each file's second pass belongs to its own first, and says what that of all of them belongs to.
std::string joint_query_moments(const std::vector<StatisticsFile>& files) {
  std::vector<Sha256> own(files.size());
  Sha256 all;
  for (std::size_t i = 0; i < files.front().manifest().layers.size(); ++i) {
    for (std::size_t f = 0; f < files.size(); ++f) {
      const LayerStatistics layer = files[f].read(files[f].manifest().layers[i]);
      const auto found = layer.first.sums.find(Moment::kQqt);
      if (found == layer.first.sums.end()) continue;
      const auto bytes = std::as_bytes(std::span(found->second.sums.data));
      own[f].update(bytes), all.update(bytes);
    }
  }
  for (std::size_t f = 0; f < files.size(); ++f) {
    if (own[f].hex() == files[f].manifest().query_moments_sha256) continue;
    throw DataError("the second pass of a rank was weighted by query moments of another run", files[f].path(),
                    "save the state again");
  }
  return all.hex();
}

void join(StatisticsPart& part, StatisticsPart next) {
  HeadRange &heads = part.manifest.heads, &more = next.manifest.heads;
  if (more.first < heads.first + heads.count) refuse("two ranks with the same KV heads", part, next);
  if (more.first > heads.first + heads.count) {
    refuse("KV heads " + std::to_string(heads.first + heads.count) + " to " + std::to_string(more.first - 1) +
               " are missing between",
           part, next);
  }
  if (part.manifest.layers.size() != next.manifest.layers.size()) refuse("ranks with different layers", part, next);
  const auto &a = part.manifest, &b = next.manifest;
  if (!(a.model == b.model)) refuse("ranks of different models", part, next);
  if (a.windows.sink != b.windows.sink || a.windows.recent != b.windows.recent) {
    refuse("ranks with different windows", part, next);
  }
  heads.count += more.count;
  part.paths.push_back(next.paths.front());
}

}  // namespace

std::string StatisticsPart::name() const {
  std::string text;
  for (const auto& path : paths) text += (text.empty() ? "" : ", ") + path.string();
  return text;
}

std::vector<StatisticsPart> join_shards(std::vector<StatisticsPart> files) {
  std::stable_sort(files.begin(), files.end(), [](const StatisticsPart& a, const StatisticsPart& b) {
    return a.manifest.heads.first < b.manifest.heads.first;
  });
  std::vector<StatisticsPart> parts;
  for (StatisticsPart& file : files) {
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return same_run(part, file); });
    found == parts.end() ? parts.push_back(std::move(file)) : join(*found, std::move(file));
  }
  for (StatisticsPart& part : parts) {
    if (part.manifest.heads.whole()) part.manifest.heads = {};
    if (part.paths.size() == 1 || part.manifest.query_moments_sha256.empty()) continue;
    const std::vector<StatisticsFile> opened(part.paths.begin(), part.paths.end());
    part.manifest.query_moments_sha256 = joint_query_moments(opened);
  }
  return parts;
}

LayerStatistics read_layer(const std::vector<StatisticsFile>& files, std::size_t i) {
  LayerStatistics layer = files.front().read(files.front().manifest().layers[i]);
  for (std::size_t f = 1; f < files.size(); ++f) {
    const LayerStatistics more = files[f].read(files[f].manifest().layers[i]);
    append(layer, more, files[f].path() + ", layer " + std::to_string(layer.layer_id));
  }
  return layer;
}

}  // namespace oscar
