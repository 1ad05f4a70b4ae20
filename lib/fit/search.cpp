// SPDX-License-Identifier: MIT
#include "fit/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "fit/clip_choice.hpp"
#include "fit/kept_layers.hpp"
#include "fit/layer_data.hpp"
#include "fit/options.hpp"
#include "method/clip.hpp"

namespace oscar {
namespace {

/// Scores closer than this are told apart by a second one.
constexpr double kCloseEnough = 1.1;

/// The transforms worth trying, most plain first.
std::vector<std::pair<std::string, FitOptions>> transforms(const FitOptions& base, const Target& target) {
  std::vector<std::pair<std::string, FitOptions>> all;
  const auto add = [&](const char* name, const auto& change) {
    FitOptions options = base;
    options.recipe = "oscar";
    options.center = false;
    if (options.granularity.empty() && target.per_head) options.granularity = "head";
    change(options);
    all.emplace_back(name, options);
  };
  add("oscar", [](FitOptions&) {});
  if (!target.linear) {
    add("hadamard", [](FitOptions& o) { o.recipe = "hadamard"; });
    return all;
  }
  const auto stretch = [](const char* objective, double power, bool center) {
    return [=](FitOptions& o) {
      o.recipe = "stretch", o.key_objective = objective, o.stretch_power = power, o.center = center;
    };
  };
  add("stretch", stretch("qqt", 1, false));
  add("stretch fisher", stretch("fisher", 1, false));
  add("stretch fisher p=0.5", stretch("fisher", 0.5, false));
  if (!target.mean) return all;
  add("stretch centred p=0.5", stretch("qqt", 0.5, true));
  add("stretch fisher centred", stretch("fisher", 1, true));
  return all;
}

template <class Better>
std::size_t best_of(const std::vector<std::size_t>& indices, const Better& better) {
  return *std::min_element(indices.begin(), indices.end(), better);
}

/// Indices whose score is within kCloseEnough of the lowest.
template <class Score>
std::vector<std::size_t> near_best(const std::vector<Scored>& scored, const Score& score) {
  double lowest = std::numeric_limits<double>::infinity();
  for (const Scored& each : scored) lowest = std::min(lowest, score(each));
  std::vector<std::size_t> near;
  for (std::size_t i = 0; i < scored.size(); ++i) {
    if (std::isfinite(score(scored[i])) && score(scored[i]) <= lowest * kCloseEnough) near.push_back(i);
  }
  if (!near.empty()) return near;
  throw NumericalError("no candidate has a finite score", "--recipe auto",
                       "look for NaN or Inf in the calibration data, or choose a recipe");
}

bool was_probed(const ModelScore& score) { return !std::isnan(score.probe); }

/// Sets that a model judges; it costs much more than attention does.
constexpr std::size_t kFinalists = 6;

/// The sample of the sequences that candidates are judged on.
SampleOptions judging_options(const FitOptions& options) { return {.seed = options.clip_fit.seed + 2}; }

/// The pooled score on the held-out sequences of a layer.
AttentionScore score_layer(const std::vector<SampledSequence>& judged, const LayerRotation& layer,
                           const HistoryCodecs& codecs, Windows windows, Backend& backend) {
  const AttentionErrors sum = compare_on_sample(judged, layer.key, layer.value, {codecs}, windows, backend).front();
  return {sum.softmax_kl / static_cast<double>(std::max<std::int64_t>(sum.queries, 1)),
          sum.output_error / std::max(sum.output_norm, 1e-300)};
}

/// Writes into each layer its scores and where its transform comes from.
void record(const std::vector<Scored>& scored, const Scored& chosen, const std::vector<Candidate>& candidates,
            std::vector<LayerRotation>& layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Json scores = Json::object();
    for (const Scored& each : scored) {
      scores[each.name] = {{"softmax_kl", each.layers[i].softmax_kl},
                           {"output_rel_error", each.layers[i].output_rel_error}};
    }
    layers[i].key.scores["search"] = {{"choice", candidates[chosen.candidate_of_layer[i]].name},
                                      {"candidates", std::move(scores)}};
  }
}

/// The candidates, with what each makes of the layers.
class Search {
 public:
  Search(std::vector<LayerParts> parts, std::vector<Candidate> candidates, const FitOptions& options, Backend& backend,
         Status& status)
      : parts_(std::move(parts)), options_(options), backend_(backend), status_(status) {
    for (Candidate& candidate : candidates) {
      clips_.emplace_back(candidate.options, candidate.recipe, backend_, status_);
      scored_.push_back({.name = candidate.name});
      candidates_.push_back(std::move(candidate));
    }
    layers_.resize(candidates_.size());
  }

  /// Fits and scores every candidate without what is held out.
  void score_all() {
    for (std::size_t i = 0; i < candidates_.size(); ++i) score(i);
    for (std::size_t i = 0; i < scored_.size(); ++i) scored_[i].candidate_of_layer.assign(parts_.size(), i);
    judged_sample_ = describe(parts_.back().judged, judging_options(options_));
    for (LayerParts& parts : parts_) parts.judged.clear(), parts.part = {};  // samples are most of what a layer takes
  }

  /// Lets the model judge the best by attention. base: the set without its layers.
  [[nodiscard]] std::vector<Scored> finalists(const ModelJudge& judge, const RotationPart& base) const {
    std::vector<Scored> scored = with_mixture(scored_, options_.codec);
    if (!judge) return scored;
    std::vector<std::size_t> order(scored.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return scored[a].mean().softmax_kl < scored[b].mean().softmax_kl; });
    order.resize(std::min(order.size(), kFinalists));
    std::vector<RotationPart> sets;
    for (const std::size_t i : order) sets.push_back(set_of(scored[i], base));
    const auto start = std::chrono::steady_clock::now();
    const std::vector<ModelScore> found = judge(sets);
    const double seconds = seconds_since(start) / static_cast<double>(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      scored[order[i]].model = found[i];
      scored[order[i]].seconds += seconds;
    }
    return scored;
  }

  /// Fits the chosen recipe of each layer to everything, and writes the search into the set.
  void fit_choice(const std::vector<Scored>& scored, const Choice& choice, RotationPart& set) {
    const Scored& chosen = scored[choice.index];
    const std::vector<std::size_t>& from = chosen.candidate_of_layer;
    set.layers.resize(parts_.size());
    for (std::size_t c = 0; c < candidates_.size(); ++c) fit_layers_of(c, from, set.layers);
    record(scored, chosen, candidates_, set.layers);
    const Candidate& main = candidates_[from.front()];
    set.key_codec = *main.recipe.codecs.key, set.value_codec = *main.recipe.codecs.value;
    const bool mixture = std::adjacent_find(from.begin(), from.end(), std::not_equal_to<>()) != from.end();
    const std::string mixed = "mixed_" + std::string(name_of(main.recipe.composition));
    set.key_objective = mixture ? mixed : main.recipe.key_name();
    set.value_objective = mixture ? mixed : main.recipe.value_name();
    set.recipe = to_json(main.recipe, main.options);
    set.recipe["name"] = "auto";
    set.recipe["search"] = {{"choice", chosen.name},
                            {"reason", choice.reason},
                            {"held_out", judged_sample_},
                            {"candidates", to_json(scored)}};
    clips_[from.front()].finish(describe(parts_.back().whole.clip, options_.clip_fit), set);
  }

 private:
  [[nodiscard]] std::vector<LayerRotation> transforms(std::size_t candidate,
                                                      const std::vector<const LayerData*>& data) const {
    std::vector<const LayerMoments*> moments;
    for (const LayerData* each : data) moments.push_back(&each->moments);
    return solve(moments, candidates_[candidate].recipe, backend_, status_);
  }

  void score(std::size_t candidate) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<const LayerData*> data;
    for (const LayerParts& each : parts_) data.push_back(&each.part);
    layers_[candidate] = transforms(candidate, data);
    Scored& scored = scored_[candidate];
    scored.layers.resize(parts_.size());
    const HistoryCodecs& plain = candidates_[candidate].recipe.codecs;
    parallel_for(
        parts_.size(),
        [&](std::size_t i) {
          LayerRotation& layer = layers_[candidate][i];
          clips_[candidate].apply(data[i]->clip, layer);
          const HistoryCodecs codecs{layer.key.clipped(*plain.key), layer.value.clipped(*plain.value)};
          scored.layers[i] = score_layer(parts_[i].judged, layer, codecs, options_.windows, backend_);
        },
        backend_.work_shape().concurrent_layers);
    scored.seconds = seconds_since(start);
  }

  /// Fits those layers that take candidate c.
  void fit_layers_of(std::size_t c, const std::vector<std::size_t>& from, std::vector<LayerRotation>& layers) const {
    std::vector<std::size_t> own;
    std::vector<const LayerData*> data;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (from[i] == c) own.push_back(i), data.push_back(&parts_[i].whole);
    }
    if (own.empty()) return;
    std::vector<LayerRotation> fitted = transforms(c, data);
    parallel_for(
        own.size(), [&](std::size_t i) { clips_[c].apply(data[i]->clip, fitted[i]); },
        backend_.work_shape().concurrent_layers);
    for (std::size_t i = 0; i < own.size(); ++i) layers[own[i]] = std::move(fitted[i]);
  }

  /// What the model is asked to judge, fitted without what is held out.
  [[nodiscard]] RotationPart set_of(const Scored& scored, const RotationPart& base) const {
    const Recipe& recipe = candidates_[scored.candidate_of_layer.front()].recipe;
    RotationPart set = base;
    set.recipe["name"] = scored.name;
    set.key_codec = *recipe.codecs.key, set.value_codec = *recipe.codecs.value;
    set.has_clip_ratios = true;
    for (std::size_t i = 0; i < parts_.size(); ++i) set.layers.push_back(layers_[scored.candidate_of_layer[i]][i]);
    return set;
  }

  std::vector<LayerParts> parts_;  // by layer
  FitOptions options_;
  Backend& backend_;
  Status& status_;
  std::vector<Candidate> candidates_;
  std::vector<ClipChoice> clips_;                   // by candidate
  std::vector<Scored> scored_;                      // by candidate
  std::vector<std::vector<LayerRotation>> layers_;  // by candidate; fitted without what is held out
  std::string judged_sample_;
};

}  // namespace

AttentionScore Scored::mean() const {
  AttentionScore sum;
  for (const AttentionScore& layer : layers) {
    sum.softmax_kl += layer.softmax_kl / static_cast<double>(layers.size());
    sum.output_rel_error += layer.output_rel_error / static_cast<double>(layers.size());
  }
  return sum;
}

std::vector<Candidate> search_candidates(const FitOptions& options) {
  const Target& target = target_from_name(options.target);
  std::vector<Candidate> candidates;
  for (const auto& [transform, each] : transforms(options, target)) {
    candidates.push_back({fmt::format("{}, {} 4,4", transform, each.codec), each, resolve_recipe(each)});
  }
  return candidates;
}

RotationPart unfitted_search(const QkvSource& source, const FitOptions& options) {
  const std::vector<Candidate> candidates = search_candidates(options);
  RotationPart set = unfitted_set(candidates.front().recipe, candidates.front().options);
  set.model = source.model(), set.calibration = source.calibration();
  set.recipe = {{"name", "auto"}, {"layers", source.layer_ids()}};
  for (const Candidate& each : candidates) set.recipe["candidates"].push_back(to_json(each.recipe, each.options));
  return set;
}

std::vector<Scored> with_mixture(std::vector<Scored> scored, const std::string& codec) {
  std::vector<std::size_t> all(scored.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  Scored mixture{.name = fmt::format("best of each layer, {} 4,4", codec)};
  for (std::size_t layer = 0; layer < scored.front().layers.size(); ++layer) {
    const std::size_t best = best_of(all, [&](std::size_t a, std::size_t b) {
      return scored[a].layers[layer].softmax_kl < scored[b].layers[layer].softmax_kl;
    });
    mixture.candidate_of_layer.push_back(best);
    mixture.layers.push_back(scored[best].layers[layer]);
  }
  const auto& from = mixture.candidate_of_layer;
  const bool one = std::adjacent_find(from.begin(), from.end(), std::not_equal_to<>()) == from.end();
  if (!one) scored.push_back(std::move(mixture));
  return scored;
}

Choice choose(const std::vector<Scored>& scored) {
  const bool judged = std::any_of(scored.begin(), scored.end(), [](const Scored& s) { return s.model.has_value(); });
  if (judged) {
    const auto kl = [](const Scored& s) { return s.model ? s.model->kld : std::numeric_limits<double>::infinity(); };
    const std::vector<std::size_t> near = near_best(scored, kl);
    if (near.size() == 1) {
      return {near.front(),
              fmt::format("its model KL, {:.4f}, is the only one within 10 % of the lowest", kl(scored[near.front()]))};
    }
    const std::size_t most =
        best_of(near, [&](auto a, auto b) { return scored[a].model->probe > scored[b].model->probe; });
    const double enough = scored[most].model->probe - scored[most].model->probe_error;
    std::vector<std::size_t> finders = near;
    std::erase_if(finders, [&](std::size_t i) { return scored[i].model->probe < enough; });
    const std::size_t best = best_of(finders, [&](auto a, auto b) { return kl(scored[a]) < kl(scored[b]); });
    return {best, fmt::format("of {} within 10 % of the lowest model KL, {} find as many probes as the best of "
                              "them, but for chance ({:.0f} % here), and of those it has the lowest KL, {:.4f}",
                              plural(static_cast<std::int64_t>(near.size()), "candidate"), finders.size(),
                              100 * scored[best].model->probe, kl(scored[best]))};
  }
  const std::vector<std::size_t> near = near_best(scored, [](const Scored& s) { return s.mean().softmax_kl; });
  const std::size_t best = best_of(near, [&](std::size_t a, std::size_t b) {
    return scored[a].mean().output_rel_error < scored[b].mean().output_rel_error;
  });
  return {best, fmt::format("of {} within 10 % of the lowest softmax KL, it has the lowest output error "
                            "({:.5f}, KL {:.5f})",
                            plural(static_cast<std::int64_t>(near.size()), "candidate"),
                            scored[best].mean().output_rel_error, scored[best].mean().softmax_kl)};
}

Json to_json(const std::vector<Scored>& scored) {
  Json list = Json::array();
  for (const Scored& each : scored) {
    Json json{{"name", each.name},
              {"softmax_kl", each.mean().softmax_kl},
              {"output_rel_error", each.mean().output_rel_error}};
    if (each.model) json["model"] = {{"kld_mean", each.model->kld}};
    if (each.model && was_probed(*each.model)) json["model"]["probes"] = each.model->probe;
    list.push_back(std::move(json));
  }
  return list;
}

std::string describe(const Scored& scored) {
  std::string text = fmt::format("{:40} softmax KL {:.5f}, output error {:.5f}", scored.name, scored.mean().softmax_kl,
                                 scored.mean().output_rel_error);
  if (scored.model) {
    text += fmt::format(", model KL {:.5f}", scored.model->kld);
    if (was_probed(*scored.model)) text += fmt::format(", probes {:.1f} %", 100 * scored.model->probe);
  }
  return text + fmt::format(", {:.2f} s", scored.seconds);
}

RotationPart fit_best(QkvSource& source, const FitOptions& options, const FitHooks& hooks, Backend& backend,
                     Status& status) {
  // Plan, and take: of every layer what all candidates need.
  std::vector<Candidate> candidates = search_candidates(options);
  const ClipChoice clip(candidates.front().options, candidates.front().recipe, backend, status);
  TakePlan plan{.windows = options.windows, .clip = clip.sample_options()};
  for (const Candidate& candidate : candidates) plan.moments.merge(candidate.recipe.moments());
  const HeldOutSplit split(source.calibration().sequences);
  std::vector<LayerParts> parts = take_layers<LayerParts>(
      source, {hooks.kept, write_parts, read_parts}, "auto: layer", backend.work_shape().concurrent_layers,
      [&](int id, LayerStream& rows) { return take_parts(id, rows, plan, split, judging_options(options), backend); },
      status);
  // Solve: every candidate, on a part of the data. Judge by what that does to attention, and to the model.
  RotationPart set;
  set.model = source.model(), set.calibration = source.calibration(), set.windows = options.windows;
  Search search(std::move(parts), std::move(candidates), options, backend, status);
  search.score_all();
  const std::vector<Scored> scored = search.finalists(hooks.judge, set);
  // Choose, and fit the choice to all of the data.
  const Choice choice = choose(scored);
  search.fit_choice(scored, choice, set);
  for (const Scored& each : scored) status.notice(describe(each));
  status.notice("chose " + scored[choice.index].name + ": " + choice.reason);
  return set;
}

}  // namespace oscar
