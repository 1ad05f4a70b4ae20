// SPDX-License-Identifier: MIT
#include "fit/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "fit/targets.hpp"

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

RotationSet unfitted_search(const QkvSource& source, const FitOptions& options) {
  const std::vector<Candidate> candidates = search_candidates(options);
  RotationSet set = unfitted_set(candidates.front().recipe, candidates.front().options);
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

}  // namespace oscar
