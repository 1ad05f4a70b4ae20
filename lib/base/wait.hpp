// SPDX-License-Identifier: MIT
// Waiting for what only an answer to a question can tell.
#pragma once

#include <functional>
#include <limits>

namespace oscar {

/// Asks whether it is `done` until it is: at once, soon again, later every 2 ms. False: the time is over. Throws what
/// throw_if_interrupted() and `done` throw.
bool wait_until(const std::function<bool()>& done, double seconds = std::numeric_limits<double>::infinity());

}  // namespace oscar
