// SPDX-License-Identifier: MIT
#include "fit/fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "fit/clip_choice.hpp"
#include "fit/fitted_layer.hpp"
#include "fit/search.hpp"

namespace oscar {
namespace {

constexpr int kHeads = 8, kDim = 128;
constexpr std::int64_t kTokens = 65536;  // 128 MiB, so that every reader gets some
constexpr int kOpenFiles = 1000;         // chunks of layers that are read and sampled side by side, three files each

/// Layers that are fitted by one recipe and kept. They are read side by side, and fitted in batches beside the reading
/// of the next ones, as many as the backend can use.
class LayerFits {
 public:
  LayerFits(QkvSource& source, const FitOptions& options, Backend& backend, Status& status,
            KeptLayers<FittedLayer>& kept)
      : source_(source),
        options_(options),
        backend_(backend),
        status_(status),
        kept_(kept),
        // Plan: what the recipe needs of each layer.
        recipe_(resolve_recipe(options)),
        clip_(options, recipe_, backend, status),
        plan_{.moments = recipe_.moments(), .windows = recipe_.windows, .clip = clip_.sample_options()} {}

  void run(std::span<const int> ids) {
    if (ids.empty()) return;
    const WorkShape shape = backend_.work_shape();
    const auto size = static_cast<std::size_t>(shape.layers_per_batch);
    std::atomic<std::int64_t> done = 0;
    std::deque<Batch> batches;
    for (std::size_t first = 0; first < ids.size(); first += size) {
      batches.emplace_back(std::min(size, ids.size() - first));
    }
    for_each_layer(source_, ids, shape.concurrent_layers, [&](std::size_t i, std::unique_ptr<LayerStream> rows) {
      if (failed_) return;  // what was handed on throws below
      Batch& batch = batches[i / size];
      // Take: moments by one walk over the rows, and a second one where a moment needs finished sums.
      batch.data[i % size].moments = take_moments(ids[i], *rows, plan_, backend_);
      auto task = [this, &batch, place = i % size, rows = std::shared_ptr(std::move(rows))]() mutable {
        finish(batch, place, std::move(rows));
      };
      if (shape.concurrent_layers == 1) {
        task();
      } else {
        batch.handed_on[i % size] = std::async(std::launch::async, std::move(task));
      }
      status_.progress("fit: layer", ++done, std::ssize(ids));
    });
    for (Batch& batch : batches) {
      for (std::future<void>& layer : batch.handed_on) {
        if (layer.valid()) layer.get();
      }
    }
  }

 private:
  struct Batch {
    explicit Batch(std::size_t count) : data(count), missing(count), handed_on(count) {}

    std::vector<LayerData> data;
    std::atomic<std::size_t> missing;
    std::vector<std::future<void>> handed_on;  // by layer; last, since these write to the others
  };

  /// Takes a few rows; and fits the batch, once all of its layers are there, one batch at a time.
  void finish(Batch& batch, std::size_t place, std::shared_ptr<LayerStream> rows) try {
    take_samples(*rows, plan_, batch.data[place]);
    rows.reset();  // rows of a live model would pile up
    if (--batch.missing > 0) return;
    const std::lock_guard one_at_a_time(fitting_);
    fit_batch(std::exchange(batch.data, {}));
  } catch (...) {
    failed_ = true;
    throw;
  }

  void fit_batch(const std::vector<LayerData>& batch) {
    // Solve: the eigenproblems of all layers of a batch together.
    std::vector<const LayerMoments*> moments;
    for (const LayerData& data : batch) moments.push_back(&data.moments);
    std::vector<LayerRotation> layers = solve(moments, recipe_, backend_, status_);
    // Choose: clip ratios by what they do to attention.
    parallel_for(
        layers.size(), [&](std::size_t i) { clip_.apply(batch[i].clip, layers[i]); },
        backend_.work_shape().concurrent_clip_fits);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      kept_.add(layers[i].layer_id, {std::move(layers[i]), describe(batch[i].clip, options_.clip_fit)});
    }
  }

  QkvSource& source_;
  const FitOptions& options_;
  Backend& backend_;
  Status& status_;
  KeptLayers<FittedLayer>& kept_;
  Recipe recipe_;
  ClipChoice clip_;
  TakePlan plan_;
  std::mutex fitting_;
  std::atomic<bool> failed_ = false;
};

}  // namespace

std::optional<std::string> too_few_tokens(const QkvSource& source, const FitOptions& options) {
  const ModelIdentity& model = source.model();
  const std::int64_t tokens = source.calibration().tokens;
  if (tokens == 0 || model.head_dim == 0 || model.num_key_value_heads == 0 || options.recipe == "hadamard") return {};
  const bool per_head = options.granularity.find("head") != std::string::npos;
  const std::int64_t rows_per_token = per_head ? 1 : model.num_key_value_heads;
  const std::int64_t rows = std::int64_t{kRowsPerChannel} * std::max(model.head_dim, model.value_dim);
  const std::int64_t needed = (rows + rows_per_token - 1) / rows_per_token;
  if (tokens >= needed) return {};
  return fmt::format("{} {} few for the matrices of a {} with {}: {} or more are needed", plural(tokens, "token"),
                     tokens == 1 ? "is" : "are", per_head ? "head" : "layer", plural(model.head_dim, "channel"),
                     needed);
}

void warm_up(Backend& backend) {
  if (backend.work_shape().layers_per_batch == 1) return;
  make_room_for_files(kOpenFiles);
  const MatrixStack identity = MatrixStack::identity(kDim);
  (void)backend.eigh(identity);
  HeadsView rows{nullptr, DType::kBF16, kTokens, kHeads, kDim};
  const std::vector<std::byte> zeros(static_cast<std::size_t>(kTokens * rows.bytes_per_token()));
  rows.data = zeros.data();
  MatrixStack grams(kHeads, kDim), forms(kHeads, kDim);
  std::vector<double> weights(kHeads);
  backend.accumulate_grams({{rows}}, grams);
  const HeadsView few = rows.tokens(0, 1024);
  backend.accumulate_weighted_grams({{few}}, forms, {{few}}, grams, weights);
}

FitResult fit(QkvSource& source, const FitOptions& options, Backend& backend, Status& status, const FitHooks& hooks) {
  const auto start = std::chrono::steady_clock::now();
  FitResult result;
  if (options.recipe == "auto") {
    // Several candidates: each is fitted without what is held out, and the best of them again with everything.
    result.set = fit_best(source, options, hooks, backend, status);
  } else {
    result.set = unfitted_set(source, options);
    KeptLayers<FittedLayer> kept = kept_fit(hooks.kept, result.set);
    LayerFits(source, options, backend, status, kept).run(kept.missing(source.layer_ids()));
    join(kept.take(source.layer_ids()), ClipChoice(options, resolve_recipe(options), backend, status), result.set);
  }
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace oscar
