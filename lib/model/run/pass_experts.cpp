// SPDX-License-Identifier: MIT
// Layers with experts: which are loaded when, and in which order units meet them.
#include <algorithm>
#include <numeric>
#include <set>

#include "model/run/pass.hpp"

namespace oscar {
namespace {

constexpr std::size_t kGroupsAhead = 4;  // in memory, with those that compute
constexpr std::int64_t kManyTokens = 8;  // that an expert gets on average: then hardly any gets none

std::set<int> as_set(const std::vector<int>& values) { return {values.begin(), values.end()}; }

}  // namespace

bool Pass::all_will_be_chosen(int layer) const {
  const ExpertsSpec& experts = config_.blocks[static_cast<std::size_t>(layer)].mlp.experts;
  return experts.count > 0 && tokens_ * experts.top_k >= kManyTokens * experts.count;
}

std::unique_ptr<ExpertLoader> Pass::load_experts_of(int layer, std::vector<int> experts) const {
  return std::make_unique<ExpertLoader>(decoder_, layer, std::move(experts), kGroupsAhead);
}

std::unique_ptr<ExpertLoader> Pass::load_all_experts_of(int layer) const {
  if (layer >= layers_ || !all_will_be_chosen(layer)) return nullptr;
  std::vector<int> all(static_cast<std::size_t>(config_.blocks[static_cast<std::size_t>(layer)].mlp.experts.count));
  std::iota(all.begin(), all.end(), 0);
  return load_experts_of(layer, std::move(all));
}

/// What need not wait for the choice.
void Pass::load_experts_early(bool experts) {
  if (experts_) return;
  experts_ = load_all_experts_of(experts ? layer_ : layer_ + 1);
}

void Pass::prepare_experts(const LoadedWeights& weights) {
  experts_ = load_all_experts_of(layer_);
  const std::unique_ptr<Rows> routed = route(units_.front(), weights);
  if (!experts_) return;
  const std::size_t groups = std::min(kGroupsAhead, experts_->groups());
  for (std::size_t i = 0; i < groups; ++i) add_experts(experts_->at(i), weights, *routed);
  decoder_.finish();
}

std::unique_ptr<Rows> Pass::route(const Unit& unit, const LoadedWeights& weights) const {
  std::vector<const Rows*> hidden;
  for (std::size_t s = unit.begin; s < unit.end; ++s) hidden.push_back(hidden_[s].get());
  return decoder_.route(weights, hidden);
}

void Pass::add_experts(const ExpertLoader::Group& group, const LoadedWeights& weights, Rows& routed) const {
  for (std::size_t i = 0; i < group.weights.size(); ++i) {
    decoder_.add_expert(weights, group.experts[i], *group.weights[i], routed);
  }
}

void Pass::add_experts_sum(const Unit& unit, const LoadedWeights& weights, const Rows& routed) {
  std::vector<Rows*> hidden;
  for (std::size_t s = unit.begin; s < unit.end; ++s) hidden.push_back(hidden_[s].get());
  decoder_.add_experts_sum(weights, routed, hidden);
}

/// All units meet a group before the next: each expert is in memory once, for a while.
void Pass::run_experts(const LoadedWeights& weights) {
  std::vector<std::unique_ptr<Rows>> routed(units_.size());
  for_each_unit([&](std::size_t u) { routed[u] = route(units_[u], weights); });
  if (!experts_) {
    std::set<int> chosen;
    for (const auto& rows : routed) chosen.merge(as_set(decoder_.chosen_experts(*rows)));
    experts_ = load_experts_of(layer_, {chosen.begin(), chosen.end()});
  }
  const std::size_t groups = experts_->groups();
  for (std::size_t i = 0; i < groups; ++i) {
    const ExpertLoader::Group& group = experts_->at(i);
    if (i + 1 == groups) experts_ahead_ = load_all_experts_of(layer_ + 1);
    for_each_unit([&](std::size_t u) { add_experts(group, weights, *routed[u]); });
    decoder_.finish();
    experts_->release(i + 1);
    tell_progress(tokens_ / 2 +
                  (tokens_ - tokens_ / 2) * static_cast<std::int64_t>(i + 1) / static_cast<std::int64_t>(groups));
  }
  for_each_unit([&](std::size_t u) { add_experts_sum(units_[u], weights, *routed[u]); });
}

}  // namespace oscar
