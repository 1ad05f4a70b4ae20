// SPDX-License-Identifier: MIT
// What every backend's MixedSequence (kernels/mixed_sequence.hpp) must answer: rows are stored as stored_rows.hpp says,
// the history is packed as packed_row.hpp says, and queries attend as attention.hpp says, one at a time, in fp64.
#pragma once

#include <memory>

#include "kernels/mixed_sequence.hpp"

namespace oscar::reference {

/// Holds a sequence; see SequenceInput for what must outlive it. Throws std::logic_error if shapes or positions do not
/// fit together. It is slow: a sequence of T tokens takes T^2 / 2 dot products a head for every call.
[[nodiscard]] std::unique_ptr<MixedSequence> hold(const SequenceInput& input);

}  // namespace oscar::reference
