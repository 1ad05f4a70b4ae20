// SPDX-License-Identifier: MIT
// Fits by statistics.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "measure/kv_method.hpp"
#include "fit/clip_choice.hpp"
#include "fit/fit.hpp"
#include "fit/layer_data.hpp"

namespace oscar {
namespace {

const LayerStatistics& layer_of(const Statistics& statistics, int id) {
  for (const LayerStatistics& layer : statistics.layers) {
    if (layer.layer_id == id && layer.first.sums.contains(Moment::kQqt)) return layer;
  }
  throw DataError("no query moments of layer " + std::to_string(id), "--stats", "merge the first pass of all parts");
}

/// Before hours of work: the first pass is of this model, and of this part of the data too.
void require_part_of(const Statistics& first_pass, const QkvSource& source) {
  if (!(first_pass.model == source.model())) {
    throw DataError("the statistics are of another model than the data", "--stats",
                    "give the merged first pass of this model");
  }
  const auto& data = first_pass.data;
  if (std::find(data.begin(), data.end(), source.calibration()) == data.end()) {
    throw DataError("the first pass was not taken of this data", "--stats",
                    "merge the first passes of all parts, this one among them");
  }
  for (const int id : source.layer_ids()) (void)layer_of(first_pass, id);
}

LayerStatistics take_layer(int id, LayerStream& rows, const Recipe& recipe, const Statistics* first_pass,
                           Backend& backend) {
  QkvChunk chunk;
  rows.rewind();
  if (!rows.skip(chunk)) throw DataError("no tokens", "layer " + std::to_string(id), "dump again");
  LayerStatistics layer{.layer_id = id, .key_dim = chunk.view.k.head_dim, .value_dim = chunk.view.v.head_dim};
  if (first_pass != nullptr) {
    layer.sst = take_sst(rows, layer_of(*first_pass, id).first.sums.at(Moment::kQqt).mean(), backend);
    layer.sst_data = {0};
    return layer;
  }
  layer.first = take(rows, {recipe.moments(), recipe.windows}, backend);
  layer.first_data = {0};
  return layer;
}

LayerStatistics read_taken(const std::filesystem::path& path, int layer_id) {
  std::vector<LayerStatistics> layers = read_statistics({path}).layers;
  if (layers.size() == 1 && layers.front().layer_id == layer_id) return std::move(layers.front());
  throw DataError("this is not layer " + std::to_string(layer_id), path.string(), "remove it");
}

bool has(const LayerStatistics& layer, Moment moment) {
  if (moment == Moment::kSst) return layer.sst.has_value();
  if (moment == Moment::kFisher) return layer.first.fisher.has_value();
  return moment == Moment::kKeys ? layer.first.keys.has_value() : layer.first.sums.contains(moment);
}

/// Every KV head of every layer that its model, when it was observed, was to have.
void require_all_observed(const Statistics& statistics) {
  for (const int id : statistics.expected_layers) {
    const auto same = [&](const LayerStatistics& layer) { return layer.layer_id == id; };
    if (std::any_of(statistics.layers.begin(), statistics.layers.end(), same)) continue;
    throw DataError("layer " + std::to_string(id) + " was never observed", "--stats",
                    "observe a forward pass through the whole model, and save again");
  }
  const HeadRange& heads = statistics.heads;
  if (heads.whole()) return;
  throw DataError(
      fmt::format("of {} KV heads only {} to {} are here", heads.total, heads.first, heads.first + heads.count - 1),
      "--stats", "give one file of each tensor-parallel rank");
}

void require_same_data(const Statistics& statistics) {
  for (const LayerStatistics& layer : statistics.layers) {
    const LayerStatistics& first = statistics.layers.front();
    if (layer.first_data == first.first_data) continue;
    throw DataError("this layer was taken of other data than layer " + std::to_string(first.layer_id),
                    "--stats, layer " + std::to_string(layer.layer_id),
                    "give the statistics of every part for every layer");
  }
}

void require_sums(const Statistics& statistics, const std::set<Moment>& moments) {
  for (const LayerStatistics& layer : statistics.layers) {
    const std::string where = "--stats, layer " + std::to_string(layer.layer_id);
    for (const Moment moment : moments) {
      if (has(layer, moment)) continue;
      if (moment != Moment::kSst)
        throw DataError("no sums of " + std::string(name_of(moment)), where,
                        "take the statistics with this recipe's options");
      throw DataError("no value moments by attention scores (sst), which are a second pass over the data", where,
                      "merge the first passes with --stats FILES --save-stats ALL, then take each part again with "
                      "--stats ALL --save-stats FILE, and fit on --stats ALL and those");
    }
    if (moments.contains(Moment::kSst) && layer.sst_data != layer.first_data) {
      throw DataError("the second pass is not of the same data as the first", where,
                      "give the second pass of every part, and no others");
    }
  }
  if (moments.contains(Moment::kSst) && statistics.query_moments_sha256 != query_moments_sha256(statistics)) {
    throw DataError("the second pass was weighted by other query moments", "--stats",
                    "give the first pass that it was taken with, or take it again");
  }
}

/// Clip ratios are fitted on rows: the published constants stand in for them.
FitOptions with_fixed_clip(FitOptions options, Status& status) {
  if (options.clip != "auto") return options;
  options.clip = fmt::format("{},{}", kPublishedKeyClip, kPublishedValueClip);
  status.notice("clip ratios " + options.clip + ", the published constants: statistics keep no rows to fit them on");
  return options;
}

}  // namespace

Recipe recipe_of_sums(const FitOptions& options) {
  if (options.recipe == "hadamard") {
    throw UsageError("recipe hadamard looks at no data but for its clip ratios", "--recipe",
                     "fit it on --dump or --model");
  }
  if (options.recipe == "auto") {
    throw UsageError("recipe auto looks at rows, which statistics do not keep", "--recipe",
                     "use oscar or stretch, or fit on --dump or --model");
  }
  return resolve_recipe(options);
}

Statistics take_statistics(QkvSource& source, const FitOptions& options, const Statistics* first_pass,
                           const PartialFolder* folder, Backend& backend, Status& status) {
  const Recipe recipe = recipe_of_sums(options);
  Statistics out{.model = source.model(), .data = {source.calibration()}, .windows = options.windows};
  if (first_pass != nullptr) {
    require_part_of(*first_pass, source);
    out.query_moments_sha256 = query_moments_sha256(*first_pass);
  }
  const auto write = [about = out](const std::filesystem::path& path, const LayerStatistics& layer) {
    Statistics alone = about;
    alone.layers = {layer};
    write_statistics(path, alone);
  };
  out.layers = take_layers<LayerStatistics>(
      source, {folder, write, read_taken}, "statistics: layer", backend.work_shape().concurrent_layers,
      [&](int id, LayerStream& rows) { return take_layer(id, rows, recipe, first_pass, backend); }, status);
  return out;
}

FitResult fit(const Statistics& statistics, const FitOptions& asked, Backend& backend, Status& status) {
  const auto start = std::chrono::steady_clock::now();
  const Recipe recipe = recipe_of_sums(asked);
  const FitOptions options = with_fixed_clip(asked, status);
  const std::set<Moment> needed = recipe.moments();
  require_all_observed(statistics);
  require_same_data(statistics);
  require_sums(statistics, needed);
  if (needed.contains(Moment::kFisher) && !(asked.windows == statistics.windows)) {
    throw UsageError(fmt::format("the statistics were taken with windows of {} and {} tokens", statistics.windows.sink,
                                 statistics.windows.recent),
                     "--stats", "give the same --sink and --recent");
  }
  std::vector<LayerMoments> moments;
  for (const LayerStatistics& layer : statistics.layers) {
    moments.push_back(moments_of(layer.layer_id, layer.key_dim, layer.value_dim, layer.first, statistics.windows));
    if (layer.sst) moments.back().covariance[Moment::kSst] = layer.sst->mean();
  }
  std::vector<const LayerMoments*> pointers;
  for (const LayerMoments& each : moments) pointers.push_back(&each);
  FitResult result;
  result.set = unfitted_set(recipe, options);
  result.set.model = statistics.model;
  result.set.calibration = calibration_of(statistics.data);
  result.set.layers = solve(pointers, recipe, backend, status);
  const ClipChoice clip(options, recipe, backend, status);
  for (LayerRotation& layer : result.set.layers) clip.apply({}, layer);
  clip.finish("", result.set);
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace oscar
