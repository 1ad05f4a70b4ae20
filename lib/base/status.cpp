// SPDX-License-Identifier: MIT
#include "base/status.hpp"

#include <signal.h>

#include <csignal>

namespace oscar {
namespace {

volatile std::sig_atomic_t interrupted = 0;

thread_local const std::atomic<bool>* own_stop = nullptr;  // of the innermost StopScope

void on_signal(int) { interrupted = 1; }

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction inherited {};
  sigaction(SIGHUP, nullptr, &inherited);
  if (inherited.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup ignores it
  // Beyond the limit of file sizes (ulimit -f), write() then fails as on a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
}

StopScope::StopScope(const std::atomic<bool>& stop) noexcept : outer_(own_stop) { own_stop = &stop; }
StopScope::~StopScope() { own_stop = outer_; }

bool interrupt_requested() noexcept { return interrupted != 0 || (own_stop != nullptr && *own_stop); }

void throw_if_interrupted() {
  if (interrupt_requested()) throw Interrupted();
}

}  // namespace oscar
