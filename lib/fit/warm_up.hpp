// SPDX-License-Identifier: MIT
// What a fit on a GPU pays once, before it rather than in it: libraries load on first use, the loader lets in one at a
// time, the table of open files grows, and memory that the GPU's copies reach takes long to find.
#pragma once

#include "kernels/backend.hpp"

namespace oscar {

/// Does a little of what fits do, for nothing. At once on the CPU.
void warm_up(Backend& backend);

}  // namespace oscar
