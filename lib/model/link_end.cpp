// SPDX-License-Identifier: MIT
#include "model/link_end.hpp"

#include <chrono>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "base/wait.hpp"

namespace oscar {
namespace {

using namespace std::chrono_literals;

constexpr const char* kResume = "see what NCCL_DEBUG=INFO tells, and start all ranks again with --resume";
constexpr const char* kReach =
    "let the machines reach each other at all ports of the network that NCCL_SOCKET_IFNAME names, or give "
    "--join-timeout "
    "more seconds; NCCL_DEBUG=INFO tells more";

}  // namespace

LinkEnd::LinkEnd(std::unique_ptr<HiddenLink> link, LinkOptions options)
    : link_(std::move(link)), options_(std::move(options)), watch_([this] { watch(); }) {}

LinkEnd::~LinkEnd() {
  cut();
  watch_.join();
}

void LinkEnd::cut() { stop_.request_stop(); }

void LinkEnd::require_whole() const {
  throw_if_interrupted();
  const std::lock_guard lock(mutex_);
  if (failure_) throw *failure_;
}

void LinkEnd::wait_until_open() {
  due_ =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.open_seconds));
  wait_until([this] {
    require_whole();
    return open_.load();
  });
}

void LinkEnd::send(const Rows& hidden) {
  attempt([&] { link_->send(hidden); });
  wait_until([this] { return is_ready(); });
  used_ = true;
}

std::unique_ptr<Rows> LinkEnd::receive(std::size_t tokens) {
  attempt([&] { link_->receive(tokens); });
  wait_until([this] { return is_ready(); });
  used_ = true;
  return link_->received();
}

bool LinkEnd::is_ready() {
  require_whole();
  bool ready = false;
  attempt([&] { ready = link_->is_ready(); });
  return ready;
}

void LinkEnd::attempt(const std::function<void()>& call) {
  try {
    call();
  } catch (const BackendUnavailable& error) {
    lose(std::string("broke: ") + error.what(), kResume);
    require_whole();
    throw;  // it was cut
  }
}

/// Nothing else looks at the link while a GPU waits for it.
void LinkEnd::watch() {
  try {
    while (!stop_.stop_requested() && !interrupt_requested()) {
      if (link_->is_ready()) open_ = true;
      // The links beyond the other end may still be opening, while this one has nothing to do.
      const double late = std::chrono::duration<double>(Clock::now() - due_.load()).count();
      if (!used_ && late > (open_ ? options_.open_seconds : 0)) {
        lose(open_ ? "opened, but nothing came through it in time" : "did not open in time", kReach);
        break;
      }
      std::this_thread::sleep_for(open_ ? 50ms : 2ms);
    }
  } catch (const std::exception& error) {
    if (!finished_) lose(std::string("broke: ") + error.what(), kResume);
  }
  link_->abort();
}

/// The other end may have gone for a reason that it tells all processes.
void LinkEnd::lose(const std::string& why, const std::string& remedy) {
  const auto is_known = [this] { return interrupt_requested() || stop_.stop_requested(); };
  const auto start = Clock::now();
  while (seconds_since(start) < options_.reason_seconds && !is_known()) std::this_thread::sleep_for(10ms);
  if (is_known()) return;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_.emplace("the link between GPUs to " + options_.peer + " " + why, "NCCL", remedy);
  }
  options_.lost(*failure_);
}

}  // namespace oscar
