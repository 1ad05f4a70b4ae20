// SPDX-License-Identifier: MIT
#include "fit/rotation_fit.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/threads.hpp"
#include "fit/clip_choice.hpp"

namespace oscar {
namespace {

/// Rows of heads (n, d) as those of tokens (n, Hkv, d).
Tensor rows_of_tokens(const std::vector<std::vector<float>>& heads, std::int64_t dim) {
  const std::int64_t count = std::ssize(heads.front()) / dim;
  Tensor rows(DType::kF32, {count, std::ssize(heads), dim});
  float* to = rows.values<float>().data();
  for (std::int64_t t = 0; t < count; ++t) {
    for (const std::vector<float>& own : heads) to = std::copy_n(own.begin() + t * dim, dim, to);
  }
  return rows;
}

/// Value moments by attention scores: of a sum of parts, those of its rows, weighed by the query moments of all.
MatrixStack score_moments(const LayerStatistics& layer, Backend& backend) {
  if (layer.sst) return layer.sst->mean();
  const Tensor keys = rows_of_tokens(layer.key_rows, layer.key_dim);
  const Tensor values = rows_of_tokens(layer.value_rows, layer.value_dim);
  const int heads = static_cast<int>(layer.key_rows.size());
  MomentSums sums{MatrixStack(heads, layer.value_dim), std::vector<double>(layer.key_rows.size())};
  backend.accumulate_weighted_grams({{heads_view(keys, "k")}}, layer.first.sums.at(Moment::kQqt).mean(),
                                    {{heads_view(values, "v")}}, sums.sums, sums.total);
  return sums.mean();
}

LayerMoments moments_of(const LayerStatistics& layer, const Recipe& recipe, Backend& backend) {
  LayerMoments out{.layer_id = layer.layer_id, .key_dim = layer.key_dim, .value_dim = layer.value_dim};
  const std::set<Moment> wanted = recipe.moments();
  for (const auto& [moment, each] : layer.first.sums) {
    if (wanted.contains(moment)) out.covariance[moment] = each.mean();
  }
  if (wanted.contains(Moment::kKeys)) out.key_mean = layer.first.keys->mean();
  // A softmax that feels shifts needs keys as they are.
  if (!layer.centred) std::ranges::fill(out.key_mean, 0);
  if (wanted.contains(Moment::kSst)) out.covariance[Moment::kSst] = score_moments(layer, backend);
  if (!wanted.contains(Moment::kFisher)) return out;
  FisherMoments fisher = mean(*layer.first.fisher, recipe.windows);
  out.covariance[Moment::kFisher] = std::move(fisher.query);
  out.covariance[Moment::kFisherKey] = std::move(fisher.key);
  out.fisher_key_mean = std::move(fisher.key_mean);
  return out;
}

bool has(const LayerStatistics& layer, Moment moment) {
  if (moment == Moment::kSst) return layer.sst.has_value() || !layer.key_rows.empty();
  if (moment == Moment::kFisher) return layer.first.fisher.has_value();
  return moment == Moment::kKeys ? layer.first.keys.has_value() : layer.first.sums.contains(moment);
}

}  // namespace

std::string lacking(const Statistics& statistics, const Recipe& recipe) {
  for (const LayerStatistics& layer : statistics.layers) {
    for (const Moment moment : recipe.moments()) {
      if (has(layer, moment)) continue;
      const std::string what =
          "no sums of " + std::string(name_of(moment)) + " in layer " + std::to_string(layer.layer_id);
      if (moment != Moment::kSst) return what;
      return what +
             ", which weigh values by the queries of all of the data: those of parts do not add up, and no rows are "
             "kept to take them of (merge the states of observers before they are saved)";
    }
  }
  return "";
}

RotationPart fit_rotations(const Statistics& statistics, const Recipe& recipe, const FitOptions& options,
                           Backend& backend, Status& status) {
  const ClipChoice clip(options, recipe, statistics.clip, backend, status);
  std::vector<LayerMoments> moments(statistics.layers.size());
  std::vector<const LayerMoments*> pointers;
  for (std::size_t i = 0; i < moments.size(); ++i) {
    throw_if_interrupted();
    moments[i] = moments_of(statistics.layers[i], recipe, backend);
    pointers.push_back(&moments[i]);
  }
  RotationPart part{.key_objective = recipe.key_name(),
                    .value_objective = recipe.value_name(),
                    .layers = solve(pointers, recipe, backend, status),
                    .model = statistics.model,
                    .calibration = calibration_of(statistics.data),
                    .windows = options.windows,
                    .key_codec = *recipe.codecs.key,
                    .value_codec = *recipe.codecs.value,
                    .recipe = to_json(recipe, options)};
  parallel_for(
      part.layers.size(),
      [&](std::size_t i) {
        throw_if_interrupted();
        clip.apply(statistics.layers[i].sample, part.layers[i]);
      },
      backend.work_shape().concurrent_clip_fits);
  clip.finish(statistics.layers.back().sample, part);
  if (statistics.recipe.contains("context")) part.recipe["context"] = statistics.recipe["context"];
  return part;
}

std::optional<MeanKey> largest_mean_key(const Statistics& statistics) {
  MeanKey most{.layer_id = -1, .share = -1};
  for (const LayerStatistics& layer : statistics.layers) {
    const auto squares = layer.first.sums.find(Moment::kKtk);
    if (!layer.first.keys || squares == layer.first.sums.end()) return std::nullopt;
    double of_mean = 0, all = 0;
    for (const double each : layer.first.keys->mean()) of_mean += each * each;
    const MatrixStack moments = squares->second.mean();
    for (int head = 0; head < moments.count; ++head) {
      for (int i = 0; i < moments.dim; ++i) {
        all += moments[head][static_cast<std::size_t>(i) * static_cast<std::size_t>(moments.dim + 1)];
      }
    }
    if (of_mean / all > most.share) most = {layer.layer_id, of_mean / all};
  }
  return most.layer_id >= 0 ? std::optional(most) : std::nullopt;
}

}  // namespace oscar
