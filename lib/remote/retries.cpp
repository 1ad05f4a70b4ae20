// SPDX-License-Identifier: MIT
#include "remote/retries.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "base/errors.hpp"

namespace oscar {
namespace {

constexpr double kMaxPause = 60;

using Clock = std::chrono::steady_clock;

void pause(double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    throw_if_interrupted();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

double pause_after(const TransientError& error, int& failures, const TransferOptions& options, Status& status) {
  if (error.unsaid) return 0;
  if (failures >= options.retries) {
    throw TransportError(std::string(error.what()) + " (tried " + std::to_string(failures + 1) + " times)",
                         error.where(), error.remedy());
  }
  status.notice(std::string(error.what()) + "; trying again: " + error.where());
  const double seconds = options.first_pause_seconds * static_cast<double>(1 << std::min(failures++, 10));
  return std::min(std::max(seconds, error.retry_after_seconds), kMaxPause);
}

void with_retries(const TransferOptions& options, Status& status, const std::function<void()>& attempt) {
  for (int failures = 0;;) {
    double seconds = 0;
    try {
      return attempt();
    } catch (const TransientError& error) {
      seconds = pause_after(error, failures, options, status);
    }
    pause(seconds);
  }
}

}  // namespace oscar
