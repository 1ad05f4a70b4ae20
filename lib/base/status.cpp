// SPDX-License-Identifier: MIT
#include "base/status.hpp"

#include <signal.h>

#include <csignal>

#include "base/errors.hpp"

namespace oscar {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void on_signal(int) { interrupted = 1; }

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupt_requested() noexcept { return interrupted != 0; }

void throw_if_interrupted() {
  if (interrupt_requested()) throw Interrupted();
}

}  // namespace oscar
