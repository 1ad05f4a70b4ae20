// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "base/errors.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "fit/take.hpp"
#include "measure/kv_method.hpp"
#include "method/coded_levels.hpp"
#include "method/solve.hpp"
#include "set/set.hpp"

namespace oscar {
namespace {

constexpr std::pair<double, double> kPublishedClips{kPublishedKeyClip, kPublishedValueClip};

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

// Clip ratios: fixed, or fitted layer by layer.

/// Sums of scores over layers: the best single ratio for servers without tables.
void add_scores(std::vector<double>& sum, const SideTransform& side) {
  if (!side.scores.contains("clip")) return;
  const auto scores = side.scores["clip"]["scores"].get<std::vector<double>>();
  sum.resize(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) sum[i] += scores[i];
}

void choose_ratio(const SideClipScores& scores, const char* metric, SideTransform& side) {
  side.clip_ratio = best_clip_ratio(scores.layer);
  side.scores["clip"] = {{"metric", metric}, {"clip_ratios", clip_candidates()}, {"scores", scores.layer}};
}

/// Chooses the ratios of a layer. fixed: none if they are fitted, by what they do to the layer's sample, which is empty
/// where no sequence is longer than the windows.
void choose_clip(const LayerStatistics& from, const std::optional<std::pair<double, double>>& fixed,
                 const Recipe& recipe, Backend& backend, Status& status, LayerRotation& layer) {
  std::tie(layer.key.clip_ratio, layer.value.clip_ratio) = fixed.value_or(kPublishedClips);
  if (fixed) return;
  if (from.sample.empty()) {
    status.warning("layer " + std::to_string(layer.layer_id) +
                   ": no sequence is longer than the windows, so nothing can be measured; the clip ratios are the "
                   "published constants");
    return;
  }
  const ClipScores scores = score_clip_ratios(from.sample, layer.key, layer.value, recipe.codecs,
                                              recipe.key_clip_per_head, recipe.windows, backend);
  choose_ratio(scores.key, "softmax_kl", layer.key);
  choose_ratio(scores.value, "output_rel_error", layer.value);
  if (!recipe.key_clip_per_head) return;
  layer.key.head_clip_ratios = best_clip_ratios(scores.key.heads);
  layer.key.scores["clip"]["scores_per_head"] = scores.key.heads;
}

/// Chooses the ratios of all layers, and the scalars for servers without tables.
void choose_clips(const Statistics& statistics, const FitOptions& options, const Recipe& recipe, Backend& backend,
                  Status& status, RotationPart& part) {
  std::optional<std::pair<double, double>> fixed = parse_clip(options.clip);
  if (!fixed && !statistics.clip) {
    fixed = kPublishedClips;
    status.notice(
        fmt::format("clip ratios {},{}, the published constants: these statistics keep no rows to fit them on",
                    kPublishedKeyClip, kPublishedValueClip));
  }
  parallel_for(
      part.layers.size(),
      [&](std::size_t i) {
        throw_if_interrupted();
        choose_clip(statistics.layers[i], fixed, recipe, backend, status, part.layers[i]);
      },
      backend.work_shape().concurrent_clip_fits);
  std::vector<double> key_sum, value_sum;
  for (const LayerRotation& layer : part.layers) {
    add_scores(key_sum, layer.key);
    add_scores(value_sum, layer.value);
  }
  const auto [key, value] = fixed.value_or(kPublishedClips);
  part.key_clip_scalar = key_sum.empty() ? key : best_clip_ratio(key_sum);
  part.value_clip_scalar = value_sum.empty() ? value : best_clip_ratio(value_sum);
  part.has_clip_ratios = true;
  if (key_sum.empty() && options.clip == "auto") {  // nothing to fit them on
    part.recipe["clip"] = fmt::format("{},{}", key, value), part.recipe["clip_granularity"] = "layer";
  }
  if (!key_sum.empty()) part.recipe["clip_sample"] = describe(statistics.layers.back().sample, *statistics.clip);
}

/// Bits of codes with which damage is measured, the same for every head.
constexpr double kTrialBits = 2;
/// Keys that are nearer to their query are mostly read as they are.
constexpr double kNearestDistance = 256;
/// Errors below this are noise of arithmetic.
constexpr double kLeastDamage = 1e-5;

MatrixStack identity(int count, int dim) {
  MatrixStack stack(count, dim);
  for (int h = 0; h < count; ++h) {
    for (int i = 0; i < dim; ++i) stack[h][static_cast<std::size_t>(i) * static_cast<std::size_t>(dim + 1)] = 1;
  }
  return stack;
}

/// The bases that the data ask for: of keys and of values. Without a cost a key's error counts as the softmax feels it,
/// and a value's by its square.
struct CodedBases {
  CodedBasis key, value;
};

CodedBases bases_of(const LayerStatistics& data, std::int64_t context, Backend& backend) {
  const AdditiveMoments& sums = data.first;
  const FisherSums& fisher = sums.fisher.value();
  const MomentSums &queries = sums.sums.at(Moment::kQqt), &values = sums.sums.at(Moment::kVtv);
  MatrixStack key_cost = data.cost ? data.cost->key : data.rotary ? fisher.base_query : fisher.query;
  if (!data.cost) {
    for (double& entry : key_cost.data) entry *= 1 / queries.total.front();
  }
  const MatrixStack value_cost = data.cost ? data.cost->value : identity(fisher.value.count, fisher.value.dim);
  const double plain_part = data.cost ? kPlainCostPart : kPlainQueryPart;
  CodedBasis key = data.rotary ? coded_pair_basis(key_cost, queries.mean(), plain_part, fisher, *data.rotary,
                                                  {kNearestDistance, static_cast<double>(context), data.cost ? 0.5 : 1})
                               : coded_key_basis(key_cost, queries.mean(), plain_part, fisher, data.centred, backend);
  return {std::move(key), coded_value_basis(value_cost, plain_part, fisher.value, values.mean(), backend)};
}

/// What levels of one side are planned by.
CodedSpectrum spectrum_of(const CodedBasis& basis, int layer_id, double weight) {
  const MatrixStack& write = basis.transform.rotation;
  return {layer_id, basis.kind, write.count, write.dim, basis.lambda, weight};
}

/// The same bits for the keys, and for the values, of every head.
CodedLevels trial_levels(const CodedBasis& basis, int layer_id) {
  const CodedSpectrum spectrum = spectrum_of(basis, layer_id, 1);
  return plan_levels({&spectrum, 1}, kTrialBits + 16.0 / spectrum.dim, CodedScope::kHead).front();
}

/// The error that codes of a plan are expected to make in a basis, whose variances count as float32.
double expected_error_of(const CodedBasis& basis, const CodedLevels& plan) {
  double error = 0;
  const auto dim = static_cast<std::size_t>(basis.transform.rotation.dim);
  for (std::size_t first = 0; first < plan.order.size(); first += dim) {
    std::vector<double> lambda;
    for (const int channel : std::span(plan.order).subspan(first, dim)) {
      lambda.push_back(static_cast<float>(basis.lambda[first + static_cast<std::size_t>(channel)]));
    }
    error += expected_error(lambda, std::span(plan.levels).subspan(first, dim), basis.kind);
  }
  return error;
}

/// What an error of 1 costs if that of the trial costs `damage`.
double weight_by(double damage, const CodedBasis& basis, int layer_id) {
  return std::max(damage, kLeastDamage) / expected_error_of(basis, trial_levels(basis, layer_id));
}

/// Ratios weigh layers and sides against each other. Where costs are known, variances have them.
CodedDamage weights_of(const LayerStatistics& layer, const CodedBases& bases) {
  if (!layer.damage) return {1, 1};
  const int id = layer.layer_id;
  return {weight_by(layer.damage->key, bases.key, id), weight_by(layer.damage->value, bases.value, id)};
}

CodedLayer coded_layer(const LayerStatistics& data, const CodedBases& bases, const CodedLevels& key,
                       const CodedLevels& value) {
  // Errors that are alike in all keys move all scores alike, which the softmax does not see.
  return {data.layer_id, coded_side(bases.key, data.rotary ? data.keys_before_rope : data.key_rows, key, 0),
          coded_side(bases.value, data.value_rows, value, kAlikeError)};
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
             "kept to take them of";
    }
  }
  return "";
}

RotationPart fit_rotations(const Statistics& statistics, const Recipe& recipe, const FitOptions& options,
                           Backend& backend, Status& status) {
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
  choose_clips(statistics, options, recipe, backend, status, part);
  if (statistics.recipe.contains("context")) part.recipe["context"] = statistics.recipe["context"];
  return part;
}

std::optional<std::pair<int, double>> largest_mean_key(const Statistics& statistics) {
  std::optional<std::pair<int, double>> most;
  for (const LayerStatistics& layer : statistics.layers) {
    double of_mean = 0, all = 0;
    if (layer.key_rows.empty()) {
      const auto squares = layer.first.sums.find(Moment::kKtk);
      if (squares == layer.first.sums.end() || !layer.first.keys) return std::nullopt;
      for (const double each : layer.first.keys->sums) of_mean += each * each / layer.first.keys->tokens;
      const std::vector<double>& keys = squares->second.sums.data;
      const auto d = static_cast<std::size_t>(layer.key_dim);
      for (std::size_t i = 0; i < keys.size(); i += (i + 1) % (d * d) == 0 ? 1 : d + 1) all += keys[i];  // diagonals
    }
    for (const std::vector<float>& rows : layer.key_rows) {
      std::vector<double> sum(static_cast<std::size_t>(layer.key_dim));
      for (std::size_t i = 0; i < rows.size(); ++i) {
        sum[i % sum.size()] += rows[i];
        all += double{rows[i]} * double{rows[i]};
      }
      for (const double each : sum) of_mean += each * each / static_cast<double>(rows.size() / sum.size());
    }
    if (all > 0 && (!most || of_mean / all > most->second)) most = {layer.layer_id, of_mean / all};
  }
  return most;
}

std::int64_t context_of(const Json& recipe, const CalibrationData& data) {
  return recipe.value("context", data.tokens / std::max<std::int64_t>(data.sequences, 1));
}

ErrorDamage damage_of(const LayerStatistics& layer, Windows windows, std::int64_t context, const MeasureDamage& measure,
                      Backend& backend) {
  const CodedBases bases = bases_of(layer, context, backend);
  const int id = layer.layer_id;
  CodedPart trial;
  trial.windows = windows;
  trial.layers = {coded_layer(layer, bases, trial_levels(bases.key, id), trial_levels(bases.value, id))};
  const CodedDamage damage = measure(trial);
  if (std::isfinite(damage.key) && std::isfinite(damage.value)) return {damage.key, damage.value};
  throw NumericalError("what errors cost is not a finite number", "layer " + std::to_string(id),
                       "look at the data of the layer");
}

CodedPart fit_coded(const Statistics& data, double bits, CodedScope scope, Backend& backend) {
  CodedPart set;
  set.model = data.model, set.calibration = calibration_of(data.data), set.windows = data.windows;
  set.scope = name_of(scope), set.recipe = {{"name", kCodedName}};
  set.recipe.update(data.recipe);
  set.recipe.erase("plain_part");  // a constant of this version, which keeps sums of others apart
  const std::size_t count = data.layers.size();
  std::vector<CodedBases> bases(count);
  std::vector<CodedDamage> weights(count);
  std::vector<CodedSpectrum> spectra(2 * count);  // keys and values of each layer, one after the other
  parallel_for(count, [&](std::size_t i) {
    throw_if_interrupted();
    const LayerStatistics& layer = data.layers[i];
    bases[i] = bases_of(layer, context_of(data.recipe, set.calibration), backend);
    weights[i] = weights_of(layer, bases[i]);
    spectra[2 * i] = spectrum_of(bases[i].key, layer.layer_id, weights[i].key);
    spectra[2 * i + 1] = spectrum_of(bases[i].value, layer.layer_id, weights[i].value);
  });
  const std::vector<CodedLevels> plan = plan_levels(spectra, bits, scope);
  set.layers.resize(count);
  parallel_for(count, [&](std::size_t i) {
    throw_if_interrupted();
    CodedLayer& layer = set.layers[i] = coded_layer(data.layers[i], bases[i], plan[2 * i], plan[2 * i + 1]);
    layer.key.damage = weights[i].key * expected_error_of(bases[i].key, plan[2 * i]);
    layer.value.damage = weights[i].value * expected_error_of(bases[i].value, plan[2 * i + 1]);
  });
  return set;
}

}  // namespace oscar
