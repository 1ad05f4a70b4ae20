// SPDX-License-Identifier: MIT
#include "fit/statistics_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "codec/kv_method.hpp"
#include "fit/clip_choice.hpp"
#include "fit/layer_data.hpp"
#include "fit/take_statistics.hpp"

namespace oscar {
namespace {

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

void require_sums(const Statistics& statistics, const std::set<Moment>& moments) {
  for (const LayerStatistics& layer : statistics.layers) {
    const std::string where = "--stats, layer " + std::to_string(layer.layer_id);
    if (layer.first_data != statistics.layers.front().first_data) {
      throw DataError(
          "this layer was taken of other data than layer " + std::to_string(statistics.layers.front().layer_id), where,
          "give the statistics of every part for every layer");
    }
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

FitResult fit(const Statistics& statistics, const FitOptions& asked, Backend& backend, Status& status) {
  const auto start = std::chrono::steady_clock::now();
  const Recipe recipe = recipe_of_sums(asked);
  const FitOptions options = with_fixed_clip(asked, status);
  const std::set<Moment> needed = recipe.moments();
  require_all_observed(statistics);
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
