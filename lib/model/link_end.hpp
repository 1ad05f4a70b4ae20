// SPDX-License-Identifier: MIT
// This process's end of a link between GPUs, watched: whatever waits for the other end, a GPU's work included, ends
// with an error that names that process once the link breaks, does not open in time, or this process is to end.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "base/errors.hpp"
#include "model/decoder.hpp"

namespace oscar {

struct LinkOptions {
  /// The process at the other end, for messages.
  std::string peer;
  /// How long opening may take, and then the first transfer.
  double open_seconds = 120;
  /// What a process that ends says of itself, it says within this time after its end of the link broke.
  double reason_seconds = 3;
  /// Told, from any thread, what is wrong with the link, before work that waits for it goes on without.
  std::function<void(const RankFailed&)> lost = [](const RankFailed&) {};
};

class LinkEnd {
 public:
  LinkEnd(std::unique_ptr<HiddenLink> link, LinkOptions options);
  /// Cuts the link.
  ~LinkEnd();
  LinkEnd(const LinkEnd&) = delete;
  LinkEnd& operator=(const LinkEnd&) = delete;

  // All of these throw RankFailed, and what throw_if_interrupted() throws.
  /// From now on it has open_seconds.
  void wait_until_open();
  /// As HiddenLink::computed().
  [[nodiscard]] std::function<bool()> computed() const { return link_->computed(); }
  /// Both wait until the transfer is done.
  void send(const Rows& hidden);
  [[nodiscard]] std::unique_ptr<Rows> receive(std::size_t tokens);
  /// Rows that came before are whole if this does not throw.
  void require_whole() const;

  /// All has arrived: from now on the other end may go.
  void finish() { finished_ = true; }
  /// Cuts the link, for which the destructor waits. Ends of one process must all be cut before the first is waited for:
  /// a GPU frees nothing while any link keeps it waiting.
  void cut();

 private:
  void watch();
  [[nodiscard]] bool is_ready();
  void attempt(const std::function<void()>& call);
  void lose(const std::string& why, const std::string& remedy);

  std::unique_ptr<HiddenLink> link_;
  LinkOptions options_;
  using Clock = std::chrono::steady_clock;
  std::atomic<bool> open_ = false, used_ = false, finished_ = false;
  std::atomic<Clock::time_point> due_ = Clock::time_point::max();  // the first transfer
  mutable std::mutex mutex_;
  std::optional<RankFailed> failure_;
  std::stop_source stop_;
  std::thread watch_;  // last, since it uses the others
};

}  // namespace oscar
