// SPDX-License-Identifier: MIT
// The search of recipe_search.hpp over the layers of a source.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <memory>

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"
#include "fit/layer_fit.hpp"
#include "fit/recipe_search.hpp"
#include "fit/search_parts.hpp"
#include "work/layer_lanes.hpp"

namespace oscar {
namespace {

/// Sets that a model judges; it costs much more than attention does.
constexpr std::size_t kFinalists = 6;
/// Refining takes a second or two a layer; with more layers it looks at less, and at one candidate instead of two.
constexpr std::size_t kFewLayers = 8;

class Search {
 public:
  Search(QkvSource& source, const FitOptions& options, const FitHooks& hooks, Backend& backend, Status& status)
      : source_(source),
        candidates_(search_candidates(options)),
        split_(source.calibration().sequences),
        options_(options),
        output_projection_(hooks.output_projection),
        partial_(hooks.partial),
        few_layers_(source.layer_ids().size() <= kFewLayers),
        backend_(backend),
        status_(status) {
    if (!few_layers_) options_.refining = lighter(options_.refining);
    for (const Candidate& candidate : candidates_) {
      recipes_.push_back(candidate.recipe);
      prepare(candidate);
    }
  }

  /// Moments, transforms and attention scores of some layers.
  void add(std::span<const int> ids) {
    const std::size_t first = parts_.size();
    take(ids);
    const std::span<const LayerParts> parts = std::span(parts_).subspan(first);
    for (const std::vector<std::size_t>& group : by_transform(candidates_)) score(parts, group);
  }

  /// Lets the model judge the best by attention, and decides.
  std::vector<Scored> finish(const ModelJudge& judge, const RotationSet& base) {
    refine_best();
    forget_scored();
    for (std::size_t i = 0; i < scored_.size(); ++i) {
      scored_[i].candidate_of_layer.assign(scored_[i].layers.size(), i);
    }
    std::vector<Scored> scored = with_mixtures(scored_, candidates_);
    if (judge) judge_finalists(judge, base, scored);
    return scored;
  }

  /// The chosen recipe of each layer, fitted on everything.
  std::vector<LayerRotation> fit_choice(const Scored& chosen) {
    std::vector<LayerRotation> layers(parts_.size());
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      std::vector<std::size_t> own;
      std::vector<const Fitting*> data;
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        if (chosen.candidate_of_layer[i] != c) continue;
        own.push_back(i);
        data.push_back(&parts_[i].whole);
      }
      std::vector<LayerRotation> fitted = transforms_of(c, data);
      parallel_for(
          own.size(), [&](std::size_t i) { clips_[c].apply(data[i]->clip, fitted[i]); },
          backend_.work_shape().concurrent_layers);
      for (std::size_t i = 0; i < own.size(); ++i) layers[own[i]] = std::move(fitted[i]);
    }
    return layers;
  }

  [[nodiscard]] const std::vector<Candidate>& candidates() const { return candidates_; }
  [[nodiscard]] const ClipChoice& clip(std::size_t i) const { return clips_[i]; }
  /// In words.
  [[nodiscard]] const std::string& judged_sample() const { return judged_sample_; }
  [[nodiscard]] std::string clip_sample() const {
    const std::vector<SampledSequence>& sample = parts_.back().whole.clip;
    return sample.empty() ? "" : describe(sample, options_.clip_fit);
  }

 private:
  void prepare(const Candidate& candidate) {
    clips_.emplace_back(candidate.options, candidate.recipe, backend_, status_);
    scored_.push_back({.name = candidate.name});
    layers_.emplace_back();
  }

  /// The best by attention compete once more, refined.
  void refine_best() {
    if (options_.refining.steps == 0) return;
    for (const Candidate& refined : refined_best(scored_, candidates_, few_layers_ ? 2 : 1)) {
      candidates_.push_back(refined);
      prepare(refined);
      score(parts_, {candidates_.size() - 1});
    }
  }

  std::vector<LayerRotation> transforms_of(std::size_t candidate, const std::vector<const Fitting*>& data) {
    return fit_candidate(candidates_[candidate].recipe, data, clips_[candidate].first_key_codec(), options_.refining,
                         backend_, status_);
  }

  /// Reads layers, but for those that are kept.
  void take(std::span<const int> ids) {
    const std::size_t first = parts_.size();
    parts_.resize(first + ids.size());
    std::vector<int> unread;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (partial_ != nullptr && partial_->has(ids[i])) {
        parts_[first + i] = read_parts(partial_->file_of(ids[i]), ids[i]);
      } else {
        unread.push_back(ids[i]);
        places.push_back(first + i);
      }
    }
    const auto total = static_cast<std::int64_t>(source_.layer_ids().size());
    std::atomic<std::int64_t> done = static_cast<std::int64_t>(first + ids.size() - unread.size());
    const PartsPlan plan{recipes_, clips_.front(), options_, output_projection_, split_};
    const int lanes = backend_.work_shape().concurrent_layers;
    for_each_layer(source_, unread, lanes, [&](std::size_t i, const std::unique_ptr<LayerStream>& whole) {
      LayerParts& parts = parts_[places[i]] = take_parts(unread[i], *whole, plan, backend_);
      if (partial_ != nullptr) write_parts(partial_->file_of(unread[i]), parts);
      status_.progress("auto: layer", ++done, total);
    });
  }

  /// Samples are most of what a layer takes in memory.
  void forget_scored() {
    judged_sample_ = describe(parts_.back().judged, judging_options(options_));
    for (LayerParts& parts : parts_) {
      parts.judged.clear();
      parts.part = {};
    }
  }

  void score(std::span<const LayerParts> parts, const std::vector<std::size_t>& group) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<const Fitting*> data;
    for (const LayerParts& each : parts) data.push_back(&each.part);
    const std::vector<LayerRotation> fitted = transforms_of(group.front(), data);
    std::vector<std::vector<LayerRotation>> clipped(group.size(), fitted);
    std::vector<std::vector<AttentionScore>> scores(parts.size());
    parallel_for(
        parts.size(),
        [&](std::size_t i) {
          std::vector<HistoryCodecs> codecs;
          for (std::size_t m = 0; m < group.size(); ++m) {
            LayerRotation& layer = clipped[m][i];
            clips_[group[m]].apply(data[i]->clip, layer);
            const HistoryCodecs& plain = candidates_[group[m]].recipe.codecs;
            codecs.push_back({layer.key.clipped(*plain.key), layer.value.clipped(*plain.value)});
          }
          scores[i] = score_layer(parts[i].judged, fitted[i], codecs, options_.windows, backend_);
        },
        backend_.work_shape().concurrent_layers);
    const double seconds = seconds_since(start) / static_cast<double>(group.size());
    for (std::size_t m = 0; m < group.size(); ++m) {
      Scored& scored = scored_[group[m]];
      for (const auto& layer : scores) scored.layers.push_back(layer[m]);
      scored.seconds += seconds;
      std::vector<LayerRotation>& kept = layers_[group[m]];
      std::move(clipped[m].begin(), clipped[m].end(), std::back_inserter(kept));
    }
  }

  void judge_finalists(const ModelJudge& judge, const RotationSet& base, std::vector<Scored>& scored) {
    std::vector<std::size_t> order(scored.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return scored[a].mean().softmax_kl < scored[b].mean().softmax_kl; });
    order.resize(std::min(order.size(), kFinalists));
    std::vector<RotationSet> sets;
    for (const std::size_t i : order) sets.push_back(set_of(scored[i], base));
    const auto start = std::chrono::steady_clock::now();
    const std::vector<ModelScore> found = judge(sets);
    const double seconds = seconds_since(start) / static_cast<double>(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      scored[order[i]].model = found[i];
      scored[order[i]].seconds += seconds;
    }
  }

  /// What the model is asked to judge, fitted without what is held out.
  [[nodiscard]] RotationSet set_of(const Scored& scored, const RotationSet& base) const {
    const Recipe& recipe = candidates_[scored.candidate_of_layer.front()].recipe;
    RotationSet set = base;
    set.recipe["name"] = scored.name;
    set.key_codec = *recipe.codecs.key, set.value_codec = *recipe.codecs.value;
    set.has_clip_ratios = true;
    for (std::size_t layer = 0; layer < parts_.size(); ++layer) {
      set.layers.push_back(layers_[scored.candidate_of_layer[layer]][layer]);
    }
    return set;
  }

  QkvSource& source_;
  std::vector<Candidate> candidates_;
  HeldOutSplit split_;
  FitOptions options_;
  OutputProjection output_projection_;
  const PartialSet* partial_;
  bool few_layers_;
  Backend& backend_;
  Status& status_;
  std::vector<Recipe> recipes_;
  std::vector<ClipChoice> clips_;
  std::vector<Scored> scored_;                      // by candidate
  std::vector<std::vector<LayerRotation>> layers_;  // by candidate; fitted without what is held out
  std::vector<LayerParts> parts_;                   // by layer
  std::string judged_sample_;
};

}  // namespace

FitResult fit_auto(QkvSource& source, const FitOptions& options, const FitHooks& hooks, Backend& backend,
                   Status& status) {
  const auto start = std::chrono::steady_clock::now();
  Search search(source, options, hooks, backend, status);
  FitResult result;
  RotationSet& set = result.set;
  set.model = source.model(), set.calibration = source.calibration(), set.windows = options.windows;
  const std::span<const int> ids = source.layer_ids();
  const auto step = static_cast<std::size_t>(backend.work_shape().layers_per_batch);
  for (std::size_t first = 0; first < ids.size(); first += step) {
    search.add(ids.subspan(first, std::min(step, ids.size() - first)));
  }
  const std::vector<Scored> scored = search.finish(hooks.judge, set);
  const Choice choice = choose(scored);
  const Scored& chosen = scored[choice.index];
  const std::size_t main = chosen.candidate_of_layer.front();
  const Recipe& recipe = search.candidates()[main].recipe;
  set.layers = search.fit_choice(chosen);
  record(scored, chosen, search.candidates(), set.layers);
  set.key_codec = *recipe.codecs.key, set.value_codec = *recipe.codecs.value;
  const auto& from = chosen.candidate_of_layer;
  const bool mixture = std::adjacent_find(from.begin(), from.end(), std::not_equal_to<>()) != from.end();
  set.key_objective = mixture ? "mixed_" + recipe.composition : recipe.key_name();
  set.value_objective = mixture ? "mixed_" + recipe.composition : recipe.value_name();
  set.recipe = to_json(recipe, search.candidates()[main].options);
  set.recipe["name"] = "auto";
  set.recipe["search"] = {{"choice", chosen.name},
                          {"reason", choice.reason},
                          {"held_out", search.judged_sample()},
                          {"candidates", to_json(scored)}};
  search.clip(main).finish(search.clip_sample(), set);
  for (const Scored& each : scored) status.notice(describe(each));
  status.notice("chose " + chosen.name + ": " + choice.reason);
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace oscar
