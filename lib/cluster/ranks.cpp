// SPDX-License-Identifier: MIT
#include "cluster/ranks.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/plugin.hpp"
#include "base/status.hpp"
#include "cluster/store.hpp"

namespace oscar {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two signs of life.
constexpr double kBeatSeconds = 0.5;
/// What a rank has to end in once it knows that another failed.
constexpr double kEndSeconds = 8;

std::string key_of(const char* what, int rank) { return what + ("/" + std::to_string(rank)); }

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

std::unique_ptr<RankStore> open_store(const Place& place, const RankOptions& options) {
  const StoreAddress address{.host = place.host,
                             .port = place.port,
                             .serve = place.rank == 0 && !place.has_store,
                             .prefix = "oscar/" + place.job,
                             .join_seconds = options.join_seconds};
  const auto open =
      reinterpret_cast<decltype(&oscar_open_rank_store)>(plugin_symbol("cluster_store", "oscar_open_rank_store"));
  return std::unique_ptr<RankStore>(open(&address));
}

/// "rank 1 (node7, process 123)"
std::string own_name(int rank) {
  char host[256] = "";
  (void)::gethostname(host, sizeof host - 1);
  return "rank " + std::to_string(rank) + " (" + host + ", process " + std::to_string(::getpid()) + ")";
}

/// What was last heard of another rank.
struct Heard {
  std::string name, beat;
  Clock::time_point at = Clock::now();
  bool done = false;
};

}  // namespace

class Ranks::Impl {
 public:
  Impl(const Place& place, RankOptions options)
      : place_(place),
        options_(std::move(options)),
        store_(open_store(place_, options_)),
        others_(static_cast<std::size_t>(place_.size)) {
    store_->set(key_of("name", place_.rank), own_name(place_.rank));
    meet();
    watching_ = store_->clone();
    watch_ = std::thread([this] { watch(); });
    guard_ = std::thread([this] { guard(); });
  }

  ~Impl() {
    if (!left_) fail("it ended");
    set(stop_);
    watch_.join();
    set(watch_ended_);  // until then the guard may be needed
    guard_.join();
  }

  const Place& place() const { return place_; }

  std::string get(const std::string& key) {
    for (double pause = 0.001;; pause = std::min(2 * pause, 0.01)) {
      throw_if_interrupted();
      if (auto value = find(key)) return *value;
      sleep_for(pause);
    }
  }

  void put(const std::string& key, const std::string& value) {
    ask([&] { store_->set(key, value); });
  }
  void remove(const std::string& key) {
    ask([&] { store_->remove(key); });
  }
  std::optional<std::string> find(const std::string& key) {
    std::optional<std::string> value;
    ask([&] { value = store_->find(key); });
    return value;
  }

  void fail(const std::string& why) noexcept {
    try {
      left_ = true;
      if (!store_->find("failed")) store_->set("failed", others_[at(place_.rank)].name + " failed: " + why);
      store_->set(key_of("done", place_.rank), "");
      if (serves()) wait_for_others(3);
    } catch (const std::exception&) {  // nobody is left to be told
    }
  }

  void leave() {
    put(key_of("done", place_.rank), "");
    left_ = true;
    if (place_.rank == 0) wait_for_others(options_.silent_seconds);
  }

 private:
  /// The store may be gone a moment before the watch can say whose fault it is.
  template <class Call>
  void ask(const Call& call) {
    try {
      call();
    } catch (const TransportError&) {
      const auto start = Clock::now();
      while (seconds_since(start) < 4 * kBeatSeconds) {
        throw_if_interrupted();
        sleep_for(0.05);
      }
      throw;
    }
  }

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  bool serves() const { return place_.rank == 0 && !place_.has_store; }

  /// Rank 0 hears of all others, all others of it.
  void meet() {
    const auto start = Clock::now();
    for (int rank = 0; rank < place_.size; ++rank) {
      std::optional<std::string> name;
      while (!(name = store_->find(key_of("name", rank)))) {
        throw_if_interrupted();
        if (seconds_since(start) > options_.join_seconds) {
          throw RankFailed("rank " + std::to_string(rank) + " did not come", place_.host,
                           "look at what that rank says; all " + std::to_string(place_.size) + " must start together");
        }
        sleep_for(0.02);
      }
      others_[at(rank)].name = *name;
    }
  }

  void wait_for_others(double seconds) {
    const auto start = Clock::now();
    for (int rank = 0; rank < place_.size; ++rank) {
      while (seconds_since(start) < seconds && !store_->find(key_of("done", rank))) sleep_for(0.02);
    }
  }

  void set(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }
  /// False: the time is over.
  bool wait_for(const bool& flag, double seconds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return flag; });
  }

  /// Signs of life, given and looked for, until this rank ends or another fails.
  void watch() {
    for (Heard& heard : others_) heard.at = Clock::now();
    try {
      while (!wait_for(stop_, kBeatSeconds)) {
        watching_->add(key_of("beat", place_.rank), 1);
        if (const auto failed = watching_->find("failed")) return end(*failed);
        for (int rank = 0; rank < place_.size; ++rank) {
          if ((rank == 0) != (place_.rank == 0) && is_silent(rank)) return end(report_silent(rank));
        }
        beat_at_ = Clock::now();
      }
    } catch (const TransportError&) {
      end(place_.has_store ? "the launcher, which keeps the ranks together, is gone"
                           : others_.front().name + " is gone");
    }
  }

  bool is_silent(int rank) {
    Heard& heard = others_[at(rank)];
    if (heard.done) return false;
    heard.done = watching_->find(key_of("done", rank)).has_value();
    const std::string beat = watching_->find(key_of("beat", rank)).value_or("");
    if (beat != heard.beat) heard.beat = beat, heard.at = Clock::now();
    return !heard.done && seconds_since(heard.at) > options_.silent_seconds;
  }

  std::string report_silent(int rank) {
    const std::string text =
        others_[at(rank)].name + " shows no sign of life: it was killed, ran out of memory, or its machine is gone";
    watching_->set("failed", text);
    return text;
  }

  void end(const std::string& why) {
    if (!left_) interrupt(RankFailed(why, "", "start all ranks again with --resume, which keeps what they finished"));
  }

  /// The watch itself may hang, in a call to a machine that is gone, and so may the rest of this process.
  void guard() {
    while (!wait_for(watch_ended_, kBeatSeconds)) {
      if (seconds_since(beat_at_) > options_.silent_seconds) end(others_.front().name + " does not answer");
      const std::optional<RankFailed> failed = rank_failed();
      if (failed && !wait_for(watch_ended_, kEndSeconds) && options_.give_up) options_.give_up(*failed);
    }
  }

  Place place_;
  RankOptions options_;
  std::unique_ptr<RankStore> store_, watching_;
  std::vector<Heard> others_;
  std::atomic<bool> left_ = false;
  std::atomic<Clock::time_point> beat_at_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false, watch_ended_ = false;
  std::thread watch_, guard_;
};

Ranks::Ranks(const Place& place, RankOptions options) : impl_(std::make_unique<Impl>(place, std::move(options))) {}
Ranks::~Ranks() = default;
int Ranks::rank() const { return impl_->place().rank; }
int Ranks::size() const { return impl_->place().size; }
void Ranks::put(const std::string& key, const std::string& value) { impl_->put(key, value); }
std::string Ranks::get(const std::string& key) { return impl_->get(key); }
std::string Ranks::take(const std::string& key) {
  std::string value = impl_->get(key);
  impl_->remove(key);
  return value;
}
void Ranks::fail(const std::string& why) noexcept { impl_->fail(why); }
void Ranks::leave() { impl_->leave(); }

}  // namespace oscar
