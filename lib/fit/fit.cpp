// SPDX-License-Identifier: MIT
#include "fit/fit.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>

#include "base/errors.hpp"
#include "codec/kv_method.hpp"
#include "fit/layer_fit.hpp"
#include "rotation/formats.hpp"

namespace oscar {
namespace {

/// Fixed ratios, or none if they are to be fitted.
std::optional<std::pair<double, double>> parse_clip(const std::string& text) {
  if (text == "auto") return std::nullopt;
  if (text == "off") return std::pair(0.0, 0.0);
  double key = -1, value = -1;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, key);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == ',') {
    const auto second = std::from_chars(first.ptr + 1, end, value);
    if (second.ec != std::errc() || second.ptr != end) value = -1;
  }
  const auto is_ratio = [](double ratio) { return ratio >= 0 && ratio <= 1; };
  if (!is_ratio(key) || !is_ratio(value)) {
    throw UsageError("cannot read the clip ratios \"" + text + "\"", "--clip",
                     "use auto, off, or two ratios from 0 to 1 like 0.96,0.92");
  }
  return std::pair(key, value);
}

ReferenceRotation read_reference(const std::filesystem::path& path) {
  ReferenceRotation reference;
  if (path.empty()) return reference;
  for (LayerRotation& layer : read_rotation_set(path).layers) {
    reference.key.emplace_back(layer.layer_id, std::move(layer.key));
    reference.value.emplace_back(layer.layer_id, std::move(layer.value));
  }
  return reference;
}

/// Sums of scores over layers: the best single ratio for servers without tables.
void add_scores(std::vector<double>& sum, const std::vector<double>& scores) {
  sum.resize(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) sum[i] += scores[i];
}

Json scores_to_json(const char* metric, const std::vector<double>& scores) {
  return {{"metric", metric}, {"clip_ratios", clip_candidates()}, {"scores", scores}};
}

/// Chooses the clip ratios of layers one by one and the scalar of the whole set.
class ClipFit {
 public:
  ClipFit(const FitOptions& options, const RowCodec& codec, Backend& backend, Status& status)
      : options_(options), codec_(codec), fixed_(parse_clip(options.clip)), backend_(backend), status_(status) {}

  void apply(LayerStream& stream, LayerRotation& layer) {
    std::tie(layer.key.clip_ratio, layer.value.clip_ratio) =
        fixed_.value_or(std::pair(kPublishedKeyClip, kPublishedValueClip));
    if (fixed_) return;
    const auto sample = sample_layer(stream, options_.windows, options_.clip_fit);
    if (sample.empty()) {
      status_.warning("layer " + std::to_string(layer.layer_id) +
                      ": no sequence is longer than the windows, so nothing can be measured; the clip ratios are the "
                      "published constants");
      return;
    }
    description_ = describe(sample, options_.clip_fit);
    const ClipScores scores =
        score_clip_ratios(sample, layer.key.rotation, layer.value.rotation, codec_, options_.windows, backend_);
    layer.key.clip_ratio = best_clip_ratio(scores.key);
    layer.value.clip_ratio = best_clip_ratio(scores.value);
    layer.key.scores["clip"] = scores_to_json("softmax_kl", scores.key);
    layer.value.scores["clip"] = scores_to_json("output_rel_error", scores.value);
    add_scores(key_sum_, scores.key);
    add_scores(value_sum_, scores.value);
  }

  void finish(RotationSet& set) const {
    const auto [key, value] = fixed_.value_or(std::pair(kPublishedKeyClip, kPublishedValueClip));
    set.key_clip_scalar = key_sum_.empty() ? key : best_clip_ratio(key_sum_);
    set.value_clip_scalar = value_sum_.empty() ? value : best_clip_ratio(value_sum_);
    set.has_clip_ratios = true;
    if (!description_.empty()) status_.detail("clip fit on " + description_);
    if (!description_.empty()) set.recipe["clip_sample"] = description_;
  }

 private:
  const FitOptions& options_;
  RowCodec codec_;
  std::optional<std::pair<double, double>> fixed_;
  Backend& backend_;
  Status& status_;
  std::vector<double> key_sum_, value_sum_;
  std::string description_;
};

Json recipe_to_json(const FitOptions& options, const Recipe& recipe) {
  return {{"name", options.recipe},
          {"target", options.target},
          {"key_objective", recipe.key_name()},
          {"value_objective", recipe.value_name()},
          {"granularity", options.granularity},
          {"clip", options.clip},
          {"group_size", options.group_size}};
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

FitResult fit(QkvSource& source, const FitOptions& options, Backend& backend, Status& status) {
  const Recipe recipe = resolve_recipe(options);
  const RowCodec codec{.levels = 4, .group_size = options.group_size};
  ClipFit clip(options, codec, backend, status);
  const ReferenceRotation reference = read_reference(options.reference_rotation);
  FitResult result;
  result.set = {.key_objective = recipe.key_name(),
                .value_objective = recipe.value_name(),
                .model = source.model(),
                .calibration = source.calibration(),
                .windows = options.windows,
                .codec = codec,
                .recipe = recipe_to_json(options, recipe)};
  const auto total = static_cast<std::int64_t>(source.layer_ids().size());
  for (const int layer_id : source.layer_ids()) {
    throw_if_interrupted();
    status.progress("fit: layer", static_cast<std::int64_t>(result.set.layers.size()), total);
    const auto start = std::chrono::steady_clock::now();
    const std::unique_ptr<LayerStream> stream = source.open(layer_id);
    // Moments, spectra, rotations.
    LayerRotation layer = fit_layer(layer_id, *stream, recipe, reference, backend);
    const double rotation_seconds = seconds_since(start);
    // Clip ratios, judged on sampled tokens in the rotated basis.
    clip.apply(*stream, layer);
    result.rotation_seconds += rotation_seconds;
    result.clip_seconds += seconds_since(start) - rotation_seconds;
    result.set.layers.push_back(std::move(layer));
  }
  status.progress("fit: layer", total, total);
  clip.finish(result.set);
  return result;
}

}  // namespace oscar
