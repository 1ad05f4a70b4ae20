// SPDX-License-Identifier: MIT
#include "fit/fit.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <iterator>
#include <mutex>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"
#include "fit/clip_choice.hpp"
#include "fit/layer_fit.hpp"
#include "fit/recipe_search.hpp"
#include "rotation/formats.hpp"
#include "work/layer_lanes.hpp"

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

/// Some neighbouring layers among those that this process fits: what was read of them, until it becomes their fit.
struct Batch {
  explicit Batch(std::size_t count)
      : moments(count), samples(count), to_refine(count), unread(count), finishing(count) {}

  std::vector<LayerMoments> moments;
  std::vector<std::vector<SampledSequence>> samples, to_refine;
  std::atomic<std::size_t> unread;
  std::vector<LayerRotation> layers = {};
  std::string sample;                        // in words
  std::vector<std::future<void>> finishing;  // by layer; last, since these write to the others
};

/// Reads layers side by side. As soon as a batch is read, all its eigenproblems are solved, then its clip ratios are
/// fitted: while the next layers are read, if the backend can.
class LayerwiseFit {
 public:
  LayerwiseFit(QkvSource& source, const FitOptions& options, const PartialSet* partial, Backend& backend,
               Status& status)
      : source_(source),
        recipe_(resolve_recipe(options)),
        reference_(read_reference(options.reference_rotation)),
        clip_(options, recipe_, backend, status),
        clip_options_(options.clip_fit),
        refining_(options.refining),
        partial_(partial),
        unfinished_(unfitted_set(source, options)),
        backend_(backend),
        status_(status) {}

  void run(std::span<const int> ids, const FitHooks& hooks) {
    if (ids.empty()) return;
    const WorkShape shape = backend_.work_shape();
    const auto step = static_cast<std::size_t>(shape.layers_per_batch);
    std::vector<int> own(ids.begin(), ids.end());
    std::erase_if(own, [&](int id) { return !source_.fits(id); });
    std::deque<Batch> batches;
    for (std::size_t first = 0; first < own.size(); first += step) {
      batches.emplace_back(std::min(step, own.size() - first));
    }
    std::atomic<std::int64_t> done = 0;
    std::once_flag first_layer_read;
    for_each_layer(source_, ids, shape.concurrent_layers, [&](std::size_t i, std::unique_ptr<LayerStream> stream) {
      const AdditiveMoments sums = take_sums(*stream, {recipe_}, backend_);
      LayerMoments moments =
          take_moments(ids[i], *stream, sums, {recipe_}, reference_, backend_, hooks.output_projection);
      if (hooks.first_layer_read) std::call_once(first_layer_read, hooks.first_layer_read);
      if (source_.fits(ids[i])) {
        const auto place = static_cast<std::size_t>(std::ranges::lower_bound(own, ids[i]) - own.begin());
        batches[place / step].moments[place % step] = std::move(moments);
        finish(batches[place / step], place % step, std::move(stream), shape.concurrent_layers);
      } else {
        take_samples(*stream);
      }
      status_.progress("fit: layer", ++done, static_cast<std::int64_t>(ids.size()));
    });
    for (Batch& batch : batches) {
      for (std::future<void>& layer : batch.finishing) {
        if (layer.valid()) layer.get();
      }
      std::move(batch.layers.begin(), batch.layers.end(), std::back_inserter(unfinished_.layers));
    }
    if (!batches.empty()) unfinished_.recipe["clip_sample"] = batches.back().sample;
  }

  /// The whole set, of what was fitted or is kept.
  [[nodiscard]] RotationSet finish() {
    if (partial_ != nullptr) {
      unfinished_.layers.clear();
      const std::vector<int>& ids = source_.layer_ids();
      std::vector<RotationSet> kept(ids.size());
      parallel_for(ids.size(), [&](std::size_t i) { kept[i] = partial_->read(ids[i]); });
      for (RotationSet& each : kept) unfinished_.layers.push_back(std::move(each.layers.front()));
      if (!kept.empty()) unfinished_.recipe = kept.back().recipe;
    }
    const std::string sample = unfinished_.recipe.value("clip_sample", "");
    unfinished_.recipe.erase("clip_sample");
    clip_.finish(sample, unfinished_);
    return std::move(unfinished_);
  }

 private:
  struct Samples {
    std::vector<SampledSequence> clip, refine;
  };
  Samples take_samples(LayerStream& stream) const {
    Samples samples{clip_.sample(stream), {}};
    if (recipe_.refine) samples.refine = sample_for_refining(stream, recipe_.windows, refining_);
    return samples;
  }

  /// What needs no more reading of whole layers: beside the next layer, if those go side by side, or if other processes
  /// would wait for it there.
  void finish(Batch& batch, std::size_t i, std::unique_ptr<LayerStream> stream, int lanes) {
    const bool beside = lanes > 1 || stream->shared() != nullptr;
    auto task = [this, &batch, i, stream = std::shared_ptr(std::move(stream))]() mutable {
      Samples samples = take_samples(*stream);
      batch.samples[i] = std::move(samples.clip), batch.to_refine[i] = std::move(samples.refine);
      stream.reset();  // a future keeps what it ran: rows of a live model would pile up
      if (--batch.unread == 0) fit_batch(batch);
    };
    if (!beside) return task();
    if (lanes == 1 && finishing_ != nullptr) finishing_->wait();  // or rows and samples would pile up
    batch.finishing[i] = std::async(std::launch::async, std::move(task));
    finishing_ = &batch.finishing[i];
  }

  void fit_batch(Batch& batch) {
    batch.layers = fit_transforms(batch.moments, recipe_, backend_, status_);
    // A few at a time: the backend holds their samples meanwhile, beside what is being read.
    const std::lock_guard one_at_a_time(fitting_);
    if (recipe_.refine) {
      refine_keys(std::vector<std::span<const SampledSequence>>(batch.to_refine.begin(), batch.to_refine.end()),
                  clip_.first_key_codec(), recipe_.windows, refining_, batch.layers, backend_, status_);
    }
    parallel_for(
        batch.layers.size(), [&](std::size_t i) { clip_.apply(batch.samples[i], batch.layers[i]); },
        backend_.work_shape().concurrent_clip_fits);
    if (!batch.samples.back().empty()) batch.sample = describe(batch.samples.back(), clip_options_);
    for (std::size_t i = 0; i < batch.layers.size() && partial_ != nullptr; ++i) {
      keep(batch.layers[i], batch.samples[i]);
    }
    batch.moments.clear();
    batch.samples.clear();
    batch.to_refine.clear();
  }

  void keep(const LayerRotation& layer, const std::vector<SampledSequence>& sample) const {
    RotationSet alone = unfinished_;
    alone.layers = {layer};
    alone.has_clip_ratios = true;
    if (!sample.empty()) alone.recipe["clip_sample"] = describe(sample, clip_options_);
    partial_->add(alone);
  }

  QkvSource& source_;
  Recipe recipe_;
  ReferenceRotation reference_;
  ClipChoice clip_;
  ClipFitOptions clip_options_;
  RefineOptions refining_;
  const PartialSet* partial_;
  RotationSet unfinished_;  // gets its layers when all are fitted
  Backend& backend_;
  Status& status_;
  std::mutex fitting_;
  const std::future<void>* finishing_ = nullptr;  // the last that began; for layers one by one
};

}  // namespace

RotationSet unfitted_set(const Recipe& recipe, const FitOptions& options) {
  return {.key_objective = recipe.key_name(),
          .value_objective = recipe.value_name(),
          .windows = options.windows,
          .key_codec = *recipe.codecs.key,
          .value_codec = *recipe.codecs.value,
          .recipe = to_json(recipe, options)};
}

RotationSet unfitted_set(const QkvSource& source, const FitOptions& options) {
  RotationSet set = unfitted_set(resolve_recipe(options), options);
  set.model = source.model();
  set.calibration = source.calibration();
  return set;
}

void fit_layers(QkvSource& source, std::span<const int> ids, const FitOptions& options, Backend& backend,
                Status& status, const FitHooks& hooks) {
  OSCAR_CHECK(hooks.partial != nullptr);
  LayerwiseFit(source, options, hooks.partial, backend, status).run(ids, hooks);
}

FitResult fit(QkvSource& source, const FitOptions& options, Backend& backend, Status& status, const FitHooks& hooks) {
  if (options.value_objective == "output" && !hooks.output_projection) {
    throw UsageError("no model is at hand, whose output projection values are to be weighed by",
                     "--value-objective output", "give --model instead of --dump, or use sst, oto or vtv");
  }
  if (options.recipe == "auto") return fit_auto(source, options, hooks, backend, status);
  const auto start = std::chrono::steady_clock::now();
  LayerwiseFit layerwise(source, options, hooks.partial, backend, status);
  std::vector<int> ids = source.layer_ids();
  std::erase_if(ids, [&](int id) { return hooks.partial != nullptr && hooks.partial->has(id); });
  layerwise.run(ids, hooks);
  FitResult result{.set = layerwise.finish()};
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace oscar
