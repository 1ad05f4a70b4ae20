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
#include "fit/clip_choice.hpp"
#include "fit/held_out.hpp"
#include "fit/layer_fit.hpp"
#include "fit/layer_lanes.hpp"
#include "fit/recipe_search.hpp"

namespace oscar {
namespace {

/// Sets that a model judges; it costs much more than attention does.
constexpr std::size_t kFinalists = 6;

/// What is kept of a layer's data.
struct LayerParts {
  LayerMoments part, whole;                                    // without and with what is held out
  std::vector<SampledSequence> clip_part, clip_whole, judged;  // judged: held out
};

RowCodec with_ratio(RowCodec codec, double ratio) {
  codec.clip_ratio = ratio;
  return codec;
}

/// The pooled score of each codec on the held-out sequences of a layer.
std::vector<AttentionScore> score_layer(const LayerParts& parts, const LayerRotation& layer,
                                        const std::vector<HistoryCodecs>& codecs, Windows windows, Backend& backend) {
  const auto errors = compare_on_sample(parts.judged, layer.key, layer.value, codecs, windows, backend);
  std::vector<AttentionScore> scores;
  for (const AttentionErrors& sum : errors) {
    scores.push_back({sum.softmax_kl / static_cast<double>(std::max<std::int64_t>(sum.queries, 1)),
                      sum.output_error / std::max(sum.output_norm, 1e-300)});
  }
  return scores;
}

class Search {
 public:
  Search(QkvSource& source, const FitOptions& options, Backend& backend, Status& status)
      : source_(source),
        candidates_(search_candidates(options)),
        split_(source.calibration().sequences),
        options_(options),
        backend_(backend),
        status_(status) {
    for (const Candidate& candidate : candidates_) {
      recipes_.push_back(candidate.recipe);
      clips_.emplace_back(candidate.options, candidate.recipe, backend, status);
      scored_.push_back({.name = candidate.name});
      layers_.emplace_back();
    }
  }

  /// Moments, transforms and attention scores of some layers.
  void add(std::span<const int> ids) {
    const std::size_t first = parts_.size();
    take(ids);
    const std::span<const LayerParts> parts = std::span(parts_).subspan(first);
    for (const std::vector<std::size_t>& group : by_transform(candidates_)) score(parts, group);
    for (std::size_t i = first; i < parts_.size(); ++i) forget_scored(parts_[i]);
  }

  /// Lets the model judge the best by attention, and decides.
  std::vector<Scored> finish(const ModelJudge& judge, const RotationSet& base) {
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
      std::vector<LayerMoments> moments;
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        if (chosen.candidate_of_layer[i] != c) continue;
        own.push_back(i);
        moments.push_back(parts_[i].whole);
      }
      std::vector<LayerRotation> fitted = fit_transforms(moments, candidates_[c].recipe, backend_, status_);
      parallel_for(
          own.size(), [&](std::size_t i) { clips_[c].apply(parts_[own[i]].clip_whole, fitted[i]); },
          backend_.work_shape().concurrent_layers);
      for (std::size_t i = 0; i < own.size(); ++i) layers[own[i]] = std::move(fitted[i]);
    }
    return layers;
  }

  [[nodiscard]] const Candidate& candidate(std::size_t i) const { return candidates_[i]; }
  [[nodiscard]] const ClipChoice& clip(std::size_t i) const { return clips_[i]; }
  /// In words.
  [[nodiscard]] const std::string& judged_sample() const { return judged_sample_; }
  [[nodiscard]] const std::vector<SampledSequence>& clip_sample() const { return parts_.back().clip_whole; }

 private:
  void take(std::span<const int> ids) {
    const std::size_t first = parts_.size();
    parts_.resize(first + ids.size());
    const auto total = static_cast<std::int64_t>(source_.layer_ids().size());
    std::atomic<std::int64_t> done = static_cast<std::int64_t>(first);
    const ClipFitOptions judging = judging_options();
    const int lanes = backend_.work_shape().concurrent_layers;
    for_each_layer(source_, ids, lanes, [&](std::size_t i, const std::unique_ptr<LayerStream>& whole) {
      LayerParts& parts = parts_[first + i];
      LayerStream& stream = *whole;
      PartStream fitted(stream, split_, false), held_out(stream, split_, true);
      parts.judged = sample_layer(held_out, options_.windows, judging);
      require_data(ids[i], fitted, parts);
      parts.part = take_moments(ids[i], fitted, recipes_, {}, backend_);
      parts.clip_part = clips_.front().sample(fitted);
      parts.whole = take_moments(ids[i], stream, recipes_, {}, backend_);
      parts.clip_whole = clips_.front().sample(stream);
      status_.progress("auto: layer", ++done, total);
    });
  }

  [[nodiscard]] ClipFitOptions judging_options() const { return {.seed = options_.clip_fit.seed + 2}; }

  /// Samples are most of what a layer takes in memory.
  void forget_scored(LayerParts& parts) {
    judged_sample_ = describe(parts.judged, judging_options());
    parts.judged.clear();
    parts.clip_part.clear();
  }

  void require_data(int id, LayerStream& fitted, const LayerParts& parts) const {
    const std::string where = "layer " + std::to_string(id);
    if (parts.judged.empty()) {
      throw TooLittleData(fmt::format("no held-out sequence is longer than the windows ({} tokens)",
                                      options_.windows.sink + options_.windows.recent),
                          where, "calibrate on longer sequences, or choose a recipe");
    }
    std::int64_t tokens = 0;
    QkvChunk chunk;
    fitted.rewind();
    while (fitted.next(chunk)) tokens += chunk.view.k.num_tokens;
    const std::int64_t needed = 4 * std::int64_t{chunk.view.k.head_dim};
    if (tokens >= needed) return;
    throw TooLittleData(fmt::format("{} tokens to fit on beside those held out are too few", tokens), where,
                        fmt::format("give at least {} tokens, four for each channel", needed));
  }

  void score(std::span<const LayerParts> parts, const std::vector<std::size_t>& group) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<LayerMoments> moments;
    for (const LayerParts& each : parts) moments.push_back(each.part);
    const std::vector<LayerRotation> fitted =
        fit_transforms(moments, candidates_[group.front()].recipe, backend_, status_);
    std::vector<std::vector<LayerRotation>> clipped(group.size(), fitted);
    std::vector<std::vector<AttentionScore>> scores(parts.size());
    parallel_for(
        parts.size(),
        [&](std::size_t i) {
          std::vector<HistoryCodecs> codecs;
          for (std::size_t m = 0; m < group.size(); ++m) {
            LayerRotation& layer = clipped[m][i];
            clips_[group[m]].apply(parts[i].clip_part, layer);
            const HistoryCodecs& plain = candidates_[group[m]].recipe.codecs;
            codecs.push_back(
                {with_ratio(*plain.key, layer.key.clip_ratio), with_ratio(*plain.value, layer.value.clip_ratio)});
          }
          scores[i] = score_layer(parts[i], fitted[i], codecs, options_.windows, backend_);
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
  Backend& backend_;
  Status& status_;
  std::vector<Recipe> recipes_;
  std::vector<ClipChoice> clips_;
  std::vector<Scored> scored_;                      // by candidate
  std::vector<std::vector<LayerRotation>> layers_;  // by candidate; fitted without what is held out
  std::vector<LayerParts> parts_;                   // by layer
  std::string judged_sample_;
};

/// Each layer's scores, and where its transform comes from.
void record(const std::vector<Scored>& scored, const Scored& chosen, const Search& search,
            std::vector<LayerRotation>& layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Json scores = Json::object();
    for (const Scored& each : scored) {
      scores[each.name] = {{"softmax_kl", each.layers[i].softmax_kl},
                           {"output_rel_error", each.layers[i].output_rel_error}};
    }
    layers[i].key.scores["search"] = {{"choice", search.candidate(chosen.candidate_of_layer[i]).name},
                                      {"candidates", std::move(scores)}};
  }
}

}  // namespace

FitResult fit_auto(QkvSource& source, const FitOptions& options, const ModelJudge& judge, Backend& backend,
                   Status& status) {
  const auto start = std::chrono::steady_clock::now();
  Search search(source, options, backend, status);
  FitResult result;
  RotationSet& set = result.set;
  set.model = source.model(), set.calibration = source.calibration(), set.windows = options.windows;
  const std::span<const int> ids = source.layer_ids();
  const auto step = static_cast<std::size_t>(backend.work_shape().layers_per_batch);
  for (std::size_t first = 0; first < ids.size(); first += step) {
    search.add(ids.subspan(first, std::min(step, ids.size() - first)));
  }
  const std::vector<Scored> scored = search.finish(judge, set);
  const Choice choice = choose(scored);
  const Scored& chosen = scored[choice.index];
  const std::size_t main = chosen.candidate_of_layer.front();
  const Recipe& recipe = search.candidate(main).recipe;
  set.layers = search.fit_choice(chosen);
  record(scored, chosen, search, set.layers);
  set.key_codec = *recipe.codecs.key, set.value_codec = *recipe.codecs.value;
  const auto& from = chosen.candidate_of_layer;
  const bool mixture = std::adjacent_find(from.begin(), from.end(), std::not_equal_to<>()) != from.end();
  set.key_objective = mixture ? "mixed_" + recipe.composition : recipe.key_name();
  set.value_objective = mixture ? "mixed_" + recipe.composition : recipe.value_name();
  set.recipe = to_json(recipe, search.candidate(main).options);
  set.recipe["name"] = "auto";
  set.recipe["search"] = {{"choice", chosen.name},
                          {"reason", choice.reason},
                          {"held_out", search.judged_sample()},
                          {"candidates", to_json(scored)}};
  search.clip(main).finish(search.clip_sample().empty() ? "" : describe(search.clip_sample(), options.clip_fit), set);
  for (const Scored& each : scored) status.notice(describe(each));
  status.notice("chose " + chosen.name + ": " + choice.reason);
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace oscar
