// SPDX-License-Identifier: MIT
#include "fit/fit.hpp"

#include <chrono>

#include "base/clock.hpp"
#include "base/threads.hpp"
#include "fit/clip_choice.hpp"
#include "fit/fitted_layer.hpp"
#include "fit/run_layers.hpp"
#include "fit/search.hpp"

namespace oscar {
namespace {

/// Fits layers by one recipe and keeps them.
void fit_by_recipe(QkvSource& source, std::span<const int> ids, const FitOptions& options, Backend& backend,
                   Status& status, KeptLayers<FittedLayer>& kept) {
  // Plan: what the recipe needs of each layer.
  const Recipe recipe = resolve_recipe(options);
  const ClipChoice clip(options, recipe, backend, status);
  const TakePlan plan{.moments = recipe.moments(), .windows = recipe.windows, .clip = clip.sample_options()};
  LayerSteps<LayerData> steps{.name = "fit: layer"};
  // Take: moments by one walk over the rows, and a second one where a moment needs finished sums; then a few rows.
  steps.read = [&](int id, LayerStream& rows) { return LayerData{take_moments(id, rows, plan, backend), {}}; };
  steps.sample = [&](LayerStream& rows, LayerData& data) { take_samples(rows, plan, data); };
  steps.make = [&](const std::vector<LayerData>& batch) {
    // Solve: the eigenproblems of all layers of a batch together.
    std::vector<const LayerMoments*> moments;
    for (const LayerData& data : batch) moments.push_back(&data.moments);
    std::vector<LayerRotation> layers = solve(moments, recipe, backend, status);
    // Choose: clip ratios by what they do to attention.
    parallel_for(
        layers.size(), [&](std::size_t i) { clip.apply(batch[i].clip, layers[i]); },
        backend.work_shape().concurrent_clip_fits);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      kept.add(layers[i].layer_id, {std::move(layers[i]), describe(batch[i].clip, options.clip_fit)});
    }
  };
  run_layers(source, ids, steps, backend.work_shape(), status);
}

}  // namespace

FitResult fit(QkvSource& source, const FitOptions& options, Backend& backend, Status& status, const FitHooks& hooks) {
  const auto start = std::chrono::steady_clock::now();
  FitResult result;
  if (options.recipe == "auto") {
    // Several candidates: each is fitted without what is held out, and the best of them again with everything.
    result.set = fit_best(source, options, hooks, backend, status);
  } else {
    result.set = unfitted_set(source, options);
    KeptLayers<FittedLayer> kept = kept_fit(hooks.kept, result.set);
    fit_by_recipe(source, kept.missing(source.layer_ids()), options, backend, status, kept);
    join(kept.take(source.layer_ids()), ClipChoice(options, resolve_recipe(options), backend, status), result.set);
  }
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace oscar
