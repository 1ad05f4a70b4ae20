// SPDX-License-Identifier: MIT
#include "fit/fit.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>

#include "base/errors.hpp"
#include "base/threads.hpp"
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
void add_scores(std::vector<double>& sum, const SideTransform& side) {
  if (!side.scores.contains("clip")) return;
  const auto scores = side.scores["clip"]["scores"].get<std::vector<double>>();
  sum.resize(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) sum[i] += scores[i];
}

Json scores_to_json(const char* metric, const std::vector<double>& scores) {
  return {{"metric", metric}, {"clip_ratios", clip_candidates()}, {"scores", scores}};
}

/// Chooses the clip ratios of layers one by one, from any thread, and at last the scalar of the whole set.
class ClipFit {
 public:
  ClipFit(const FitOptions& options, const Recipe& recipe, Backend& backend, Status& status)
      : options_(options.clip_fit),
        windows_(recipe.windows),
        codecs_(recipe.codecs),
        fixed_(recipe.codecs.key->grid == Grid::kMinMax ? parse_clip(options.clip) : std::pair(0.0, 0.0)),
        backend_(backend),
        status_(status) {}

  /// What the fit must keep of a layer's data.
  [[nodiscard]] std::vector<SampledSequence> sample(LayerStream& stream) const {
    if (fixed_) return {};
    return sample_layer(stream, windows_, options_);
  }

  void apply(const std::vector<SampledSequence>& sample, LayerRotation& layer) const {
    std::tie(layer.key.clip_ratio, layer.value.clip_ratio) =
        fixed_.value_or(std::pair(kPublishedKeyClip, kPublishedValueClip));
    if (fixed_) return;
    if (sample.empty()) {
      status_.warning("layer " + std::to_string(layer.layer_id) +
                      ": no sequence is longer than the windows, so nothing can be measured; the clip ratios are the "
                      "published constants");
      return;
    }
    const ClipScores scores = score_clip_ratios(sample, layer.key, layer.value, codecs_, windows_, backend_);
    layer.key.clip_ratio = best_clip_ratio(scores.key);
    layer.value.clip_ratio = best_clip_ratio(scores.value);
    layer.key.scores["clip"] = scores_to_json("softmax_kl", scores.key);
    layer.value.scores["clip"] = scores_to_json("output_rel_error", scores.value);
  }

  void finish(const std::string& description, RotationSet& set) const {
    const auto [key, value] = fixed_.value_or(std::pair(kPublishedKeyClip, kPublishedValueClip));
    std::vector<double> key_sum, value_sum;
    for (const LayerRotation& layer : set.layers) {
      add_scores(key_sum, layer.key);
      add_scores(value_sum, layer.value);
    }
    set.key_clip_scalar = key_sum.empty() ? key : best_clip_ratio(key_sum);
    set.value_clip_scalar = value_sum.empty() ? value : best_clip_ratio(value_sum);
    set.has_clip_ratios = true;
    if (key_sum.empty()) return;
    status_.detail("clip fit on " + description);
    set.recipe["clip_sample"] = description;
  }

 private:
  ClipFitOptions options_;
  Windows windows_;
  HistoryCodecs codecs_;
  std::optional<std::pair<double, double>> fixed_;
  Backend& backend_;
  Status& status_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// task(i, stream of ids[i]) on up to `lanes` threads. Streams are opened in order, as a live model demands.
void for_each_layer(QkvSource& source, std::span<const int> ids, int lanes,
                    const std::function<void(std::size_t, LayerStream&)>& task) {
  std::mutex mutex;
  std::size_t next = 0;
  const auto work = [&](std::size_t) {
    while (true) {
      std::unique_lock lock(mutex);
      if (next == ids.size()) return;
      const std::size_t i = next++;
      const std::unique_ptr<LayerStream> stream = source.open(ids[i]);
      lock.unlock();
      throw_if_interrupted();
      task(i, *stream);
    }
  };
  const auto stop_others = [&](std::size_t lane) {
    try {
      work(lane);
    } catch (...) {
      const std::lock_guard lock(mutex);
      next = ids.size();
      throw;
    }
  };
  parallel_for(static_cast<std::size_t>(lanes), stop_others, lanes);
}

/// Moments and samples of some layers, then all their eigenproblems, then their clip ratios.
class BatchFit {
 public:
  BatchFit(QkvSource& source, const FitOptions& options, Backend& backend, Status& status)
      : source_(source),
        recipe_(resolve_recipe(options)),
        reference_(read_reference(options.reference_rotation)),
        clip_(options, recipe_, backend, status),
        clip_options_(options.clip_fit),
        backend_(backend),
        status_(status) {}

  [[nodiscard]] const Recipe& recipe() const { return recipe_; }

  void add(std::span<const int> ids, FitResult& result) {
    const int lanes = backend_.work_shape().concurrent_layers;
    const auto total = static_cast<std::int64_t>(source_.layer_ids().size());
    const auto start = std::chrono::steady_clock::now();
    std::vector<LayerMoments> moments(ids.size());
    std::vector<std::vector<SampledSequence>> samples(ids.size());
    std::atomic<std::int64_t> done = static_cast<std::int64_t>(result.set.layers.size());
    status_.progress("fit: layer", done, total);
    for_each_layer(source_, ids, lanes, [&](std::size_t i, LayerStream& stream) {
      moments[i] = take_moments(ids[i], stream, {recipe_}, reference_, backend_);
      samples[i] = clip_.sample(stream);
      status_.progress("fit: layer", ++done, total);
    });
    std::vector<LayerRotation> layers = fit_transforms(moments, recipe_, backend_, status_);
    const double rotation_seconds = seconds_since(start);
    parallel_for(
        layers.size(), [&](std::size_t i) { clip_.apply(samples[i], layers[i]); }, lanes);
    result.rotation_seconds += rotation_seconds;
    result.clip_seconds += seconds_since(start) - rotation_seconds;
    if (!samples.back().empty()) sample_description_ = describe(samples.back(), clip_options_);
    std::move(layers.begin(), layers.end(), std::back_inserter(result.set.layers));
  }

  void finish(RotationSet& set) const { clip_.finish(sample_description_, set); }

 private:
  QkvSource& source_;
  Recipe recipe_;
  ReferenceRotation reference_;
  ClipFit clip_;
  ClipFitOptions clip_options_;
  Backend& backend_;
  Status& status_;
  std::string sample_description_;
};

}  // namespace

FitResult fit(QkvSource& source, const FitOptions& options, Backend& backend, Status& status) {
  BatchFit batch(source, options, backend, status);
  FitResult result;
  result.set = {.key_objective = batch.recipe().key_name(),
                .value_objective = batch.recipe().value_name(),
                .model = source.model(),
                .calibration = source.calibration(),
                .windows = options.windows,
                .key_codec = *batch.recipe().codecs.key,
                .value_codec = *batch.recipe().codecs.value,
                .recipe = to_json(batch.recipe(), options)};
  const std::span<const int> ids = source.layer_ids();
  const auto step = static_cast<std::size_t>(backend.work_shape().layers_per_batch);
  for (std::size_t first = 0; first < ids.size(); first += step) {
    batch.add(ids.subspan(first, std::min(step, ids.size() - first)), result);
  }
  batch.finish(result.set);
  return result;
}

}  // namespace oscar
