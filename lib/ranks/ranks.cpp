// SPDX-License-Identifier: MIT
#include "ranks/ranks.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "base/torch_plugin.hpp"
#include "base/wait.hpp"
#include "ranks/process_name.hpp"
#include "ranks/store.hpp"

namespace oscar {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two signs of life.
constexpr double kBeatSeconds = 0.5;
/// What a rank has to end in once it is interrupted because it failed, or another did.
constexpr double kEndSeconds = 8;
/// c10d's store takes values of up to 8 MiB.
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

std::string key_of(const char* what, int rank) { return what + ("/" + std::to_string(rank)); }
/// Keys of callers have no "#".
std::string piece_of(const std::string& key, int piece) { return key + "#" + std::to_string(piece); }

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

std::unique_ptr<RankStore> open_store(const Place& place, const RankOptions& options) {
  const StoreAddress address{.host = place.host,
                             .port = place.port,
                             .serve = place.rank == 0 && !place.has_store,
                             .prefix = "oscar/" + place.job,
                             .join_seconds = options.join_seconds};
  const auto open =
      reinterpret_cast<decltype(&oscar_open_rank_store)>(torch_plugin_symbol("rank_store", "oscar_open_rank_store"));
  return std::unique_ptr<RankStore>(open(&address));
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
    others_[at(place_.rank)].name = name_of_process(place_.rank);
    watching_ = store_->clone();
    try {
      const std::string cores = "cores/" + name_of_cores();
      store_->add(cores, 1);
      store_->set(key_of("name", place_.rank), others_[at(place_.rank)].name);
      meet();
      sharers_of_cores_ = std::stoi(store_->find(cores).value_or("1"));
    } catch (const TransportError&) {
      throw gone(whose_store_is_gone());
    } catch (const std::exception& error) {
      fail(error.what());
      throw;
    }
    watch_ = std::thread([this] { watch(); });
    guard_ = std::thread([this] { guard(); });
  }

  ~Impl() {
    if (!left_) fail("it ended");
    raise(stop_);
    watch_.join();
    raise(watch_ended_);  // until then the guard may be needed
    guard_.join();
  }

  const Place& place() const { return place_; }
  const std::string& name(int rank) const { return others_.at(at(rank)).name; }
  int sharers_of_cores() const { return sharers_of_cores_; }

  /// Waits for it.
  std::string wait_for_value(const std::string& key) {
    std::optional<std::string> value;
    wait_until([&] { return (value = find(key)).has_value(); });
    return *value;
  }

  std::string get(const std::string& key, bool take) {
    std::string value;
    const int pieces = std::stoi(wait_for_value(key));
    for (int i = 0; i < pieces; ++i) {
      const std::string name = piece_of(key, i);
      value += wait_for_value(name);
      if (take) ask([&] { store_->remove(name); });
    }
    if (take) ask([&] { store_->remove(key); });
    return value;
  }

  void put(const std::string& key, const std::string& value) {
    int pieces = 0;
    for (std::size_t begin = 0; begin < value.size(); begin += kPieceBytes) {
      set(piece_of(key, pieces++), value.substr(begin, kPieceBytes));
    }
    set(key, std::to_string(pieces));
  }
  void set(const std::string& key, const std::string& value) {
    ask([&] { store_->set(key, value); });
  }
  std::optional<std::string> find(const std::string& key) {
    std::optional<std::string> value;
    ask([&] { value = store_->find(key); });
    return value;
  }

  void fail(const std::string& why) noexcept {
    if (left_.exchange(true)) return;  // all know it
    try {
      if (!store_->find("failed")) store_->set("failed", others_[at(place_.rank)].name + " failed: " + why);
      store_->set(key_of("done", place_.rank), "");
      if (serves()) wait_for_others(3);
    } catch (const std::exception&) {  // nobody is left to be told
    }
  }

  void leave() {
    set(key_of("done", place_.rank), "");
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
      wait_until([] { return false; }, 4 * kBeatSeconds);
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
      auto looked_at = Clock::now();
      while (!(name = store_->find(key_of("name", rank)))) {
        throw_if_interrupted();
        if (seconds_since(looked_at) > kBeatSeconds) {
          looked_at = Clock::now();
          if (const auto failed = look()) throw gone(*failed);
        }
        if (seconds_since(start) > options_.join_seconds) {
          throw RankFailed("rank " + std::to_string(rank) + " did not come", place_.host,
                           "look at what that rank says; all " + std::to_string(place_.size) + " must start together");
        }
        sleep_for(0.02);
      }
      others_[at(rank)].name = *name;
      others_[at(rank)].at = Clock::now();
    }
  }

  void wait_for_others(double seconds) {
    const auto start = Clock::now();
    for (int rank = 0; rank < place_.size; ++rank) {
      while (seconds_since(start) < seconds && !store_->find(key_of("done", rank))) sleep_for(0.02);
    }
  }

  void raise(bool& flag) {
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
    try {
      while (!wait_for(stop_, kBeatSeconds)) {
        if (const auto failed = look()) return end(*failed);
        beat_at_ = Clock::now();
      }
    } catch (const TransportError&) {
      end(whose_store_is_gone());
    }
  }

  std::string whose_store_is_gone() const {
    if (place_.has_store) return "the launcher, which keeps the ranks together, is gone";
    const std::string& name = others_.front().name;
    return (name.empty() ? "rank 0" : name) + " is gone";
  }

  /// Gives a sign of life and looks for those of others, as far as they came; what failed, if anything did.
  std::optional<std::string> look() {
    watching_->add(key_of("beat", place_.rank), 1);
    if (auto failed = watching_->find("failed")) return failed;
    for (int rank = 0; rank < place_.size; ++rank) {
      if ((rank == 0) == (place_.rank == 0) || others_[at(rank)].name.empty()) continue;
      if (is_silent(rank)) return report_silent(rank);
    }
    return std::nullopt;
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
    if (!left_) interrupt(gone(why));
  }

  static RankFailed gone(const std::string& why) {
    return {why, "", "start all ranks again with --resume, which keeps what they finished"};
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
  int sharers_of_cores_ = 1;
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
const std::string& Ranks::name(int rank) const { return impl_->name(rank); }
int Ranks::sharers_of_cores() const { return impl_->sharers_of_cores(); }
void Ranks::put(const std::string& key, const std::string& value) { impl_->put(key, value); }
std::string Ranks::get(const std::string& key) { return impl_->get(key, false); }
std::string Ranks::take(const std::string& key) { return impl_->get(key, true); }
void Ranks::fail(const std::string& why) noexcept { impl_->fail(why); }
void Ranks::leave() { impl_->leave(); }

}  // namespace oscar
