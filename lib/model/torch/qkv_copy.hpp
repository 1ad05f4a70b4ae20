// SPDX-License-Identifier: MIT
// Copies of q, k and v to the host, beside what a GPU computes meanwhile.
#pragma once

#include <string>

#include "model/torch/rows.hpp"

namespace oscar {

/// Starts copies in the type of `out`.
void start_copy(const Device& device, QkvRows& rows, const QkvBuffers& out);
/// Waits for them. As decoder.hpp's finish_copy.
[[nodiscard]] std::string finish_copy(QkvRows& rows);

}  // namespace oscar
