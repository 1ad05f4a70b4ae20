// SPDX-License-Identifier: MIT
#include "moments/statistics.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "base/errors.hpp"
#include "base/sha256.hpp"
#include "base/status.hpp"
#include "base/threads.hpp"
#include "moments/statistics_file.hpp"

namespace oscar {
namespace {

/// What one file, or the files of several tensor-parallel ranks together, say of themselves; sums are read layer by
/// layer.
struct Part {
  std::vector<std::filesystem::path> paths;  // by ascending heads
  Statistics manifest;

  /// "a.safetensors", or "a.safetensors, b.safetensors"
  [[nodiscard]] std::string name() const {
    std::string text;
    for (const auto& path : paths) text += (text.empty() ? "" : ", ") + path.string();
    return text;
  }
};

[[noreturn]] void refuse(const std::string& what, const Part& a, const Part& b, const char* advice) {
  throw DataError(what, a.name() + " and " + b.name(), advice);
}

// Files of tensor-parallel ranks, which hold different KV heads of the same data, as if they were one.

constexpr const char* kOfEachRank = "give one file of each tensor-parallel rank";

/// Ranks of one run: the same data of the same heads in all.
bool same_run(const Part& a, const Part& b) {
  const HeadRange &own = a.manifest.heads, &other = b.manifest.heads;
  return !own.whole() && !other.whole() && a.manifest.data == b.manifest.data && own.total == other.total;
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

void join(Part& part, Part next) {
  HeadRange &heads = part.manifest.heads, &more = next.manifest.heads;
  if (more.first < heads.first + heads.count) refuse("two ranks with the same KV heads", part, next, kOfEachRank);
  if (more.first > heads.first + heads.count) {
    refuse("KV heads " + std::to_string(heads.first + heads.count) + " to " + std::to_string(more.first - 1) +
               " are missing between",
           part, next, kOfEachRank);
  }
  if (part.manifest.layers.size() != next.manifest.layers.size())
    refuse("ranks with different layers", part, next, kOfEachRank);
  const auto &a = part.manifest, &b = next.manifest;
  if (!(a.model == b.model)) refuse("ranks of different models", part, next, kOfEachRank);
  if (!(a.windows == b.windows)) refuse("ranks with different windows", part, next, kOfEachRank);
  heads.count += more.count;
  part.paths.push_back(next.paths.front());
}

/// Puts shards of the same data together, which may leave heads out at either end (Statistics::heads). Throws DataError
/// that names the files: two ranks with the same heads, a gap between them, other layers or sums.
std::vector<Part> join_shards(std::vector<Part> files) {
  std::ranges::stable_sort(files, {}, [](const Part& part) { return part.manifest.heads.first; });
  std::vector<Part> parts;
  for (Part& file : files) {
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return same_run(part, file); });
    found == parts.end() ? parts.push_back(std::move(file)) : join(*found, std::move(file));
  }
  for (Part& part : parts) {
    if (part.manifest.heads.whole()) part.manifest.heads = {};
    if (part.paths.size() == 1 || part.manifest.query_moments_sha256.empty()) continue;
    const std::vector<StatisticsFile> opened(part.paths.begin(), part.paths.end());
    part.manifest.query_moments_sha256 = joint_query_moments(opened);
  }
  return parts;
}

/// Layer number `i` of the part, heads of all files in order.
LayerStatistics read_layer(const std::vector<StatisticsFile>& files, std::size_t i) {
  LayerStatistics layer = files.front().read(files.front().manifest().layers[i]);
  for (std::size_t f = 1; f < files.size(); ++f) {
    const LayerStatistics more = files[f].read(files[f].manifest().layers[i]);
    append(layer, more, files[f].path() + ", layer " + std::to_string(layer.layer_id));
  }
  return layer;
}

// Parts of the data, or layers, added up.

void require_same_origin(const Part& a, const Part& b) {
  const ModelIdentity &x = a.manifest.model, &y = b.manifest.model;
  const char* const advice = "merge statistics of one model only";
  if (x.id != y.id) refuse("statistics of different models (\"" + x.id + "\", \"" + y.id + "\")", a, b, advice);
  if (x.revision != y.revision || x.config_sha256 != y.config_sha256) {
    refuse("statistics of different revisions of a model", a, b, advice);
  }
  if (!(x == y)) refuse("statistics of models of different shape", a, b, advice);
  if (!(a.manifest.windows == b.manifest.windows)) {
    refuse("statistics with different windows", a, b, "take them with the same --sink and --recent");
  }
  const std::string &p = a.manifest.query_moments_sha256, &q = b.manifest.query_moments_sha256;
  const HeadRange &g = a.manifest.heads, &h = b.manifest.heads;
  if (g.first != h.first || g.count != h.count) {
    refuse("statistics of different KV heads that are not of the same data", a, b, "join the ranks of each run first");
  }
  if (!p.empty() && !q.empty() && p != q) {
    refuse("second passes by different query moments", a, b,
           "take every second pass with the same --stats, or merge the states before they are saved");
  }
}

/// "fisher keys qqt"
std::string names_of(const AdditiveMoments& moments) {
  std::string names;
  if (moments.fisher) names += "fisher ";
  if (moments.keys) names += "keys ";
  for (const auto& [moment, sums] : moments.sums) names += std::string(name_of(moment)) + " ";
  if (!names.empty()) names.pop_back();
  return names;
}

void add_data(const std::vector<std::size_t>& more, std::vector<std::size_t>& data, const std::string& where) {
  for (const std::size_t each : more) {
    if (std::find(data.begin(), data.end(), each) == data.end()) continue;
    throw DataError("the same data twice", where, "give each part of the data once");
  }
  data.insert(data.end(), more.begin(), more.end());
  std::sort(data.begin(), data.end());
}

/// where: of `from`.
void merge(LayerStatistics& to, LayerStatistics from, const std::string& where) {
  if (to.key_dim != from.key_dim || to.value_dim != from.value_dim) {
    throw DataError("heads of another size than elsewhere", where, "merge statistics of one model only");
  }
  const bool adds = !to.first_data.empty() && !from.first_data.empty();
  if (adds && names_of(to.first) != names_of(from.first)) {
    throw DataError("sums of " + names_of(from.first) + ", elsewhere of " + names_of(to.first), where,
                    "take all parts with the same options");
  }
  if (adds) to.first.merge(from.first);
  if (to.first_data.empty()) to.first = std::move(from.first);
  if (to.sst && from.sst) to.sst->merge(*from.sst);
  if (!to.sst) to.sst = std::move(from.sst);
  add_data(from.first_data, to.first_data, where);
  add_data(from.sst_data, to.sst_data, where);
}

/// Where the file's data are in `all`, to which new ones are added.
std::vector<std::size_t> places_of(const Statistics& manifest, std::vector<CalibrationData>& all) {
  std::vector<std::size_t> places;
  for (const CalibrationData& each : manifest.data) {
    const auto found = std::find(all.begin(), all.end(), each);
    places.push_back(static_cast<std::size_t>(found - all.begin()));
    if (found == all.end()) all.push_back(each);
  }
  return places;
}

std::vector<std::size_t> moved(std::vector<std::size_t> data, const std::vector<std::size_t>& places) {
  for (std::size_t& each : data) each = places[each];
  std::sort(data.begin(), data.end());
  return data;
}

/// In the order of what they were taken of.
std::vector<Part> parts_of(const std::vector<std::filesystem::path>& paths) {
  std::vector<Part> parts;
  for (const auto& path : paths) parts.push_back({{path}, StatisticsFile(path).manifest()});
  parts = join_shards(std::move(parts));
  const auto key = [](const Part& part) {
    std::string text;
    for (const CalibrationData& each : part.manifest.data) text += each.data_sha256;
    return text;
  };
  std::ranges::stable_sort(parts, {}, key);
  return parts;
}

/// Adds the layers of a file to those with the same ids.
void add_layers(const Part& part, const std::vector<std::size_t>& places, std::map<int, LayerStatistics>& layers) {
  const std::vector<StatisticsFile> files(part.paths.begin(), part.paths.end());
  const std::vector<LayerStatistics>& listed = part.manifest.layers;
  for (const LayerStatistics& layer : listed) layers[layer.layer_id];  // before threads look for theirs
  parallel_for(listed.size(), [&](std::size_t i) {
    LayerStatistics own = read_layer(files, i);
    own.first_data = moved(std::move(own.first_data), places);
    own.sst_data = moved(std::move(own.sst_data), places);
    LayerStatistics& sum = layers.at(own.layer_id);
    if (sum.key_dim == 0) {
      sum = std::move(own);
    } else {
      merge(sum, std::move(own), part.name() + ", layer " + std::to_string(listed[i].layer_id));
    }
  });
}

}  // namespace

CalibrationData calibration_of(const std::vector<CalibrationData>& parts) {
  if (parts.size() == 1) return parts.front();
  CalibrationData sum;
  std::string hashes;
  for (const CalibrationData& part : parts) {
    sum.tokens += part.tokens, sum.sequences += part.sequences;
    sum.blocks.insert(sum.blocks.end(), part.blocks.begin(), part.blocks.end());
    hashes += part.data_sha256;
  }
  // What is not known of one part is not known of the whole.
  if (std::ranges::any_of(parts, [](const CalibrationData& part) { return part.blocks.empty(); })) sum.blocks.clear();
  sum.data_sha256 = sha256_hex(hashes);
  return sum;
}

std::string query_moments_sha256(const Statistics& statistics) {
  Sha256 hash;
  for (const LayerStatistics& layer : statistics.layers) {
    const auto found = layer.first.sums.find(Moment::kQqt);
    if (found != layer.first.sums.end()) hash.update(std::as_bytes(std::span(found->second.sums.data)));
  }
  return hash.hex();
}

Statistics read_statistics(const std::vector<std::filesystem::path>& paths) {
  const std::vector<Part> parts = parts_of(paths);
  Statistics out;
  out.model = parts.front().manifest.model, out.windows = parts.front().manifest.windows;
  out.heads = parts.front().manifest.heads;
  std::set<int> expected;
  for (const Part& part : parts) {
    for (const Part& other : parts) require_same_origin(part, other);
    if (out.query_moments_sha256.empty()) out.query_moments_sha256 = part.manifest.query_moments_sha256;
    if (!out.sample) out.sample = part.manifest.sample;
    expected.insert(part.manifest.expected_layers.begin(), part.manifest.expected_layers.end());
  }
  std::map<int, LayerStatistics> layers;
  for (const Part& part : parts) {
    throw_if_interrupted();
    add_layers(part, places_of(part.manifest, out.data), layers);
  }
  out.expected_layers.assign(expected.begin(), expected.end());
  for (auto& [id, layer] : layers) out.layers.push_back(std::move(layer));
  const std::string where = parts.size() == 1 ? parts.front().name() : parts.front().name() + " and others";
  parallel_for(out.layers.size(),
               [&](std::size_t i) { require_semidefinite(out.layers[i], out.sample.has_value(), where); });
  return out;
}

}  // namespace oscar
