// SPDX-License-Identifier: MIT
// What a mixed-precision cache does to the attention of a query: the sums of AttentionErrors, by their definitions in
// kernels/README.md.
#pragma once

#include "kernels/reference/attention.hpp"

namespace oscar::reference {

/// Adds one query to the errors of its head.
///   exact     attention over native rows
///   mixed     attention over the cache, its output mapped back to native coordinates
/// Throws std::logic_error unless both saw the same number of keys and have outputs of the same size.
void add_errors(const Attention& exact, const Attention& mixed, Windows windows, AttentionErrors& errors);

}  // namespace oscar::reference
