// SPDX-License-Identifier: MIT
#include "fit/fit.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"
#include "fit/clip_choice.hpp"
#include "fit/layer_fit.hpp"
#include "fit/layer_lanes.hpp"
#include "fit/recipe_search.hpp"
#include "rotation/formats.hpp"

namespace oscar {
namespace {

ReferenceRotation read_reference(const std::filesystem::path& path) {
  ReferenceRotation reference;
  if (path.empty()) return reference;
  for (LayerRotation& layer : read_rotation_set(path).layers) {
    reference.key.emplace_back(layer.layer_id, std::move(layer.key));
    reference.value.emplace_back(layer.layer_id, std::move(layer.value));
  }
  return reference;
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
        refining_(options.refining),
        backend_(backend),
        status_(status) {}

  [[nodiscard]] const Recipe& recipe() const { return recipe_; }

  void add(std::span<const int> ids, FitResult& result) {
    const int lanes = backend_.work_shape().concurrent_layers;
    const auto total = static_cast<std::int64_t>(source_.layer_ids().size());
    const auto start = std::chrono::steady_clock::now();
    std::vector<LayerMoments> moments(ids.size());
    std::vector<std::vector<SampledSequence>> samples(ids.size()), to_refine(ids.size());
    std::atomic<std::int64_t> done = static_cast<std::int64_t>(result.set.layers.size());
    status_.progress("fit: layer", done, total);
    for_each_layer(source_, ids, lanes, [&](std::size_t i, LayerStream& stream) {
      moments[i] = take_moments(ids[i], stream, {recipe_}, reference_, backend_);
      samples[i] = clip_.sample(stream);
      if (recipe_.refine) to_refine[i] = sample_for_refining(stream, recipe_.windows, refining_);
      status_.progress("fit: layer", ++done, total);
    });
    std::vector<LayerRotation> layers = fit_transforms(moments, recipe_, backend_, status_);
    if (recipe_.refine) {
      refine_keys(to_refine, clip_.first_key_codec(), recipe_.windows, refining_, layers, backend_, status_);
    }
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
  ClipChoice clip_;
  ClipFitOptions clip_options_;
  RefineOptions refining_;
  Backend& backend_;
  Status& status_;
  std::string sample_description_;
};

}  // namespace

FitResult fit(QkvSource& source, const FitOptions& options, Backend& backend, Status& status, const ModelJudge& judge) {
  if (options.recipe == "auto") return fit_auto(source, options, judge, backend, status);
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
