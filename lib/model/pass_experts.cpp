// SPDX-License-Identifier: MIT
// Layers with experts: which are loaded when, and in which order units meet them. Either order gives the same bits.
#include <algorithm>
#include <numeric>
#include <set>

#include "model/pass.hpp"

namespace oscar {
namespace {

constexpr std::size_t kGroupsAhead = 4;  // in memory, with those that compute
constexpr std::int64_t kManyTokens = 8;  // that an expert gets on average: then hardly any gets none

std::set<int> as_set(const std::vector<int>& values) { return {values.begin(), values.end()}; }

}  // namespace

/// Everything must be in memory then, but the next process has something to do while this one has.
bool Pass::can_take_units_one_by_one() const {
  if (share_.ranks == 1 || units_.size() == 1) return false;
  for (int layer = share_.rank; layer < layers_; layer += share_.ranks) {
    const bool experts = config_.blocks[static_cast<std::size_t>(layer)].mlp.experts.count > 0;
    if (experts && !decoder_.holds_experts_of(layer)) return false;
  }
  return true;
}

bool Pass::all_will_be_chosen(int layer) const {
  const ExpertsSpec& experts = config_.blocks[static_cast<std::size_t>(layer)].mlp.experts;
  return experts.count > 0 && tokens_ * experts.top_k >= kManyTokens * experts.count;
}

std::unique_ptr<ExpertLoader> Pass::load_experts_of(int layer, std::vector<int> experts) const {
  const std::size_t ahead = units_one_by_one_ ? experts.size() : kGroupsAhead;
  return std::make_unique<ExpertLoader>(decoder_, layer, std::move(experts), ahead);
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
  experts_ = load_all_experts_of(experts ? layer_ : layer_ + share_.ranks);
}

void Pass::prepare_experts(const LoadedWeights& weights) {
  experts_ = load_all_experts_of(layer_);
  const std::unique_ptr<Rows> routed = route(units_.front(), weights);
  if (!experts_) return;
  const std::size_t groups = units_one_by_one_ ? experts_->groups() : std::min(kGroupsAhead, experts_->groups());
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
  for (std::size_t s = unit.begin; s < unit.end; ++s) hand_on(s);
}

/// All units meet a group before the next: each expert is in memory once, for a while.
void Pass::experts_by_group(const LoadedWeights& weights) {
  std::vector<std::unique_ptr<Rows>> routed(units_.size());
  in_parallel(units_.size(), [&](std::size_t u) { routed[u] = route(units_[u], weights); });
  if (!experts_) {
    std::set<int> chosen;
    for (const auto& rows : routed) chosen.merge(as_set(decoder_.chosen_experts(*rows)));
    experts_ = load_experts_of(layer_, {chosen.begin(), chosen.end()});
  }
  const std::size_t groups = experts_->groups();
  for (std::size_t i = 0; i < groups; ++i) {
    const ExpertLoader::Group& group = experts_->at(i);
    if (i + 1 == groups) experts_ahead_ = load_all_experts_of(layer_ + share_.ranks);
    in_parallel(units_.size(), [&](std::size_t u) { add_experts(group, weights, *routed[u]); });
    decoder_.finish();
    experts_->release(i + 1);
    tell_progress(tokens_ / 2 +
                  (tokens_ - tokens_ / 2) * static_cast<std::int64_t>(i + 1) / static_cast<std::int64_t>(groups));
  }
  in_parallel(units_.size(), [&](std::size_t u) { add_experts_sum(units_[u], weights, *routed[u]); });
}

/// Each unit meets all experts before the next.
void Pass::experts_by_unit(const Mixer& mix, const LoadedWeights& weights) {
  std::int64_t passed = 0;
  for (const Unit& unit : units_) {
    throw_if_interrupted();
    for (std::size_t s = unit.begin; s < unit.end; ++s) {
      mix_sequence(s, mix, weights);
      passed += static_cast<std::int64_t>(sequences_[s].size());
    }
    const std::unique_ptr<Rows> routed = route(unit, weights);
    for (std::size_t i = 0; i < experts_->groups(); ++i) add_experts(experts_->at(i), weights, *routed);
    if (!experts_ahead_) experts_ahead_ = load_all_experts_of(layer_ + share_.ranks);
    add_experts_sum(unit, weights, *routed);
    tell_progress(passed);
  }
}

}  // namespace oscar
