// SPDX-License-Identifier: MIT
// Work that may take its process down, tried in another one first.
#pragma once

#include <functional>

namespace oscar {

/// Whether a copy of this process gets through `task` within so many seconds. Exceptions count as getting through: the
/// caller will see them too. The task may not wait for other threads, which the copy does not have; what it prints is
/// lost. Throws IoError if there can be no other process.
[[nodiscard]] bool survives(const std::function<void()>& task, unsigned seconds);

}  // namespace oscar
