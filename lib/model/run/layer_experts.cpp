// SPDX-License-Identifier: MIT
#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "model/run/pass.hpp"

namespace oscar {
namespace {

constexpr std::size_t kGroupsAhead = 4;  // in memory, with those that compute
constexpr std::int64_t kManyTokens = 8;  // that an expert gets on average: then hardly any gets none

}  // namespace

/// Loads experts (ascending) group by group in a thread of its own, ahead of who needs them. One loader loads at a
/// time: what one frees, another may not overwrite too early.
class ExpertLoader {
 public:
  struct Group {
    std::span<const int> experts;
    std::vector<std::unique_ptr<LoadedWeights>> weights;  // by expert
  };

  ExpertLoader(const Decoder& decoder, int layer, std::vector<int> experts)
      : decoder_(decoder), layer_(layer), experts_(std::move(experts)) {
    const auto step = static_cast<std::size_t>(decoder.experts_at_once(layer));
    for (std::size_t first = 0; first < experts_.size(); first += step) {
      groups_.push_back({std::span(experts_).subspan(first, std::min(step, experts_.size() - first)), {}});
    }
    thread_ = std::thread([this] { load(); });
  }
  ~ExpertLoader() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  ExpertLoader(const ExpertLoader&) = delete;
  ExpertLoader& operator=(const ExpertLoader&) = delete;

  [[nodiscard]] std::size_t groups() const { return groups_.size(); }
  /// Waits for group number i. Throws what loading throws.
  [[nodiscard]] const Group& at(std::size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || i < loaded_; });
    if (i >= loaded_) std::rethrow_exception(error_);
    return groups_[i];
  }
  /// Says that the first so many groups are not needed any more.
  void release(std::size_t count) {
    {
      const std::lock_guard lock(mutex_);
      for (; released_ < count; ++released_) groups_[released_].weights.clear();
    }
    changed_.notify_all();
  }

 private:
  void load() try {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || loaded_ == groups_.size() || loaded_ < released_ + kGroupsAhead; });
      if (stop_ || loaded_ == groups_.size()) return;
      Group& group = groups_[loaded_];
      lock.unlock();
      group.weights = decoder_.load_experts(layer_, group.experts);
      lock.lock();
      ++loaded_;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }

  const Decoder& decoder_;
  int layer_;
  std::vector<int> experts_;
  std::vector<Group> groups_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t loaded_ = 0, released_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last, since it uses the others
};

namespace {

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

LayerExperts::LayerExperts(const Decoder& decoder, const ModelConfig& config, int layers, std::int64_t tokens)
    : decoder_(decoder), config_(config), layers_(layers), tokens_(tokens) {}

LayerExperts::~LayerExperts() = default;

void LayerExperts::next_layer() { current_ = std::move(ahead_); }

void LayerExperts::drop() { current_.reset(); }

std::unique_ptr<ExpertLoader> LayerExperts::load_all(int layer) const {
  if (layer >= layers_) return nullptr;
  const ExpertsSpec& experts = config_.block(layer).mlp.experts;
  if (experts.count == 0 || tokens_ * experts.top_k < kManyTokens * experts.count) return nullptr;
  std::vector<int> all(static_cast<std::size_t>(experts.count));
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<ExpertLoader>(decoder_, layer, std::move(all));
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
    current_ = std::make_unique<ExpertLoader>(decoder_, layer, std::vector<int>(chosen.begin(), chosen.end()));
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
