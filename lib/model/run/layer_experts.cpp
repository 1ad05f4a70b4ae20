// SPDX-License-Identifier: MIT
#include "model/run/layer_experts.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace oscar {
namespace {

constexpr std::size_t kGroupsAhead = 4;  // in memory, with those that compute
constexpr std::int64_t kManyTokens = 8;  // that an expert gets on average: then hardly any gets none

std::unique_ptr<Rows> route(const Decoder& decoder, const LoadedWeights& weights, LayerExperts::Unit unit) {
  std::vector<const Rows*> hidden;
  for (const auto& rows : unit) hidden.push_back(rows.get());
  return decoder.route(weights, hidden);
}

void add_group(const Decoder& decoder, const ExpertLoader::Group& group, const LoadedWeights& weights, Rows& routed) {
  for (std::size_t i = 0; i < group.weights.size(); ++i) {
    decoder.add_expert(weights, group.experts[i], *group.weights[i], routed);
  }
}

void add_sum(const Decoder& decoder, const LoadedWeights& weights, const Rows& routed, LayerExperts::Unit unit) {
  std::vector<Rows*> hidden;
  for (const auto& rows : unit) hidden.push_back(rows.get());
  decoder.add_experts_sum(weights, routed, hidden);
}

}  // namespace

std::unique_ptr<ExpertLoader> LayerExperts::load(int layer, std::vector<int> experts) const {
  return std::make_unique<ExpertLoader>(decoder_, layer, std::move(experts), kGroupsAhead);
}

std::unique_ptr<ExpertLoader> LayerExperts::load_all(int layer) const {
  if (layer >= layers_) return nullptr;
  const ExpertsSpec& experts = config_.blocks[static_cast<std::size_t>(layer)].mlp.experts;
  if (experts.count == 0 || tokens_ * experts.top_k < kManyTokens * experts.count) return nullptr;
  std::vector<int> all(static_cast<std::size_t>(experts.count));
  std::iota(all.begin(), all.end(), 0);
  return load(layer, std::move(all));
}

void LayerExperts::load_early(int layer, bool will_run) {
  if (!current_) current_ = load_all(will_run ? layer : layer + 1);
}

void LayerExperts::try_out(int layer, const LoadedWeights& weights, Unit unit) {
  current_ = load_all(layer);
  const std::unique_ptr<Rows> routed = route(decoder_, weights, unit);
  if (!current_) return;
  const std::size_t groups = std::min(kGroupsAhead, current_->groups());
  for (std::size_t i = 0; i < groups; ++i) add_group(decoder_, current_->at(i), weights, *routed);
  decoder_.finish();
}

void LayerExperts::run(int layer, const LoadedWeights& weights, std::span<const Unit> units, const ForEach& for_each,
                       const std::function<void(std::size_t, std::size_t)>& done) {
  std::vector<std::unique_ptr<Rows>> routed(units.size());
  for_each(units.size(), [&](std::size_t u) { routed[u] = route(decoder_, weights, units[u]); });
  if (!current_) {
    std::set<int> chosen;
    for (const auto& rows : routed) {
      const std::vector<int> experts = decoder_.chosen_experts(*rows);
      chosen.insert(experts.begin(), experts.end());
    }
    current_ = load(layer, {chosen.begin(), chosen.end()});
  }
  const std::size_t groups = current_->groups();
  for (std::size_t i = 0; i < groups; ++i) {
    const ExpertLoader::Group& group = current_->at(i);
    if (i + 1 == groups) ahead_ = load_all(layer + 1);
    for_each(units.size(), [&](std::size_t u) { add_group(decoder_, group, weights, *routed[u]); });
    decoder_.finish();
    current_->release(i + 1);
    done(i + 1, groups);
  }
  for_each(units.size(), [&](std::size_t u) { add_sum(decoder_, weights, *routed[u], units[u]); });
}

}  // namespace oscar
