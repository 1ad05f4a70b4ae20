// SPDX-License-Identifier: MIT
// Transient failures are tried again a few times, with growing pauses.
#pragma once

#include <functional>

#include "base/status.hpp"
#include "remote/transport.hpp"

namespace oscar {

/// Runs `attempt` until it succeeds, fails for good, or has failed transiently 1 + options.retries times.
void with_retries(const TransferOptions& options, Status& status, const std::function<void()>& attempt);

/// Seconds to wait after another failure, those before it counted in `failures`; throws when it was the last one.
[[nodiscard]] double pause_after(const TransientError& error, int& failures, const TransferOptions& options,
                                 Status& status);

}  // namespace oscar
