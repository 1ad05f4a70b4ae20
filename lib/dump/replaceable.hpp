// SPDX-License-Identifier: MIT
#pragma once

#include "base/atomic_folder.hpp"

namespace oscar {

/// Returns what a new dump may replace, for an AtomicFolder: if `replace`, a folder that holds a dump of ours and
/// nothing but the files that its manifest tells of; else nothing.
[[nodiscard]] RequireOurs replaceable_dump(bool replace);

}  // namespace oscar
