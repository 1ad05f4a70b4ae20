// SPDX-License-Identifier: MIT
#include "moments/statistics.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "base/errors.hpp"
#include "base/sha256.hpp"
#include "base/status.hpp"
#include "base/threads.hpp"
#include "moments/shards.hpp"
#include "moments/statistics_check.hpp"
#include "moments/statistics_file.hpp"

namespace oscar {
namespace {

using Entry = StatisticsPart;

[[noreturn]] void refuse(const std::string& what, const Entry& a, const Entry& b, const char* advice) {
  throw DataError(what, a.name() + " and " + b.name(), advice);
}

void require_same_origin(const Entry& a, const Entry& b) {
  const ModelIdentity &x = a.manifest.model, &y = b.manifest.model;
  const char* const advice = "merge statistics of one model only";
  if (x.id != y.id) refuse("statistics of different models (\"" + x.id + "\", \"" + y.id + "\")", a, b, advice);
  if (x.revision != y.revision || x.config_sha256 != y.config_sha256) {
    refuse("statistics of different revisions of a model", a, b, advice);
  }
  if (!(x == y)) refuse("statistics of models of different shape", a, b, advice);
  const Windows &v = a.manifest.windows, &w = b.manifest.windows;
  if (v.sink != w.sink || v.recent != w.recent) {
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
std::vector<Entry> entries_of(const std::vector<std::filesystem::path>& paths) {
  std::vector<Entry> entries;
  for (const auto& path : paths) entries.push_back({{path}, StatisticsFile(path).manifest()});
  entries = join_shards(std::move(entries));
  const auto key = [](const Entry& entry) {
    std::string text;
    for (const CalibrationData& each : entry.manifest.data) text += each.data_sha256;
    return text;
  };
  std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return entries;
}

/// Adds the layers of a file to those with the same ids.
void add_layers(const Entry& entry, const std::vector<std::size_t>& places, std::map<int, LayerStatistics>& layers) {
  const std::vector<StatisticsFile> files(entry.paths.begin(), entry.paths.end());
  const std::vector<LayerStatistics>& listed = entry.manifest.layers;
  for (const LayerStatistics& layer : listed) layers[layer.layer_id];  // before threads look for theirs
  parallel_for(listed.size(), [&](std::size_t i) {
    LayerStatistics own = read_layer(files, i);
    own.first_data = moved(std::move(own.first_data), places);
    own.sst_data = moved(std::move(own.sst_data), places);
    LayerStatistics& sum = layers.at(own.layer_id);
    if (sum.key_dim == 0) {
      sum = std::move(own);
    } else {
      merge(sum, std::move(own), entry.name() + ", layer " + std::to_string(listed[i].layer_id));
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
  const std::vector<Entry> entries = entries_of(paths);
  Statistics out;
  out.model = entries.front().manifest.model, out.windows = entries.front().manifest.windows;
  out.heads = entries.front().manifest.heads;
  std::set<int> expected;
  for (const Entry& entry : entries) {
    for (const Entry& other : entries) require_same_origin(entry, other);
    if (out.query_moments_sha256.empty()) out.query_moments_sha256 = entry.manifest.query_moments_sha256;
    if (!out.sample) out.sample = entry.manifest.sample;
    expected.insert(entry.manifest.expected_layers.begin(), entry.manifest.expected_layers.end());
  }
  std::map<int, LayerStatistics> layers;
  for (const Entry& entry : entries) {
    throw_if_interrupted();
    add_layers(entry, places_of(entry.manifest, out.data), layers);
  }
  out.expected_layers.assign(expected.begin(), expected.end());
  for (auto& [id, layer] : layers) out.layers.push_back(std::move(layer));
  const std::string where = entries.size() == 1 ? entries.front().name() : entries.front().name() + " and others";
  parallel_for(out.layers.size(),
               [&](std::size_t i) { require_semidefinite(out.layers[i], out.sample.has_value(), where); });
  return out;
}

}  // namespace oscar
