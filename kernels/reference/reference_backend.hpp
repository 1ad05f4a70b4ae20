// SPDX-License-Identifier: MIT
// The reference as a Backend, for tests: plain loops over packed bytes, slow.
#pragma once

#include <memory>

#include "kernels/backend.hpp"
#include "kernels/mixed_sequence.hpp"

namespace oscar::reference {

// Every operation of kernels/backend.hpp by the plain loops of this folder: what kernels/cpu and kernels/cuda are
// tested against. Nothing is fast, nothing is parallel. Non-goal: serving a command; make_backend() does not know it.

[[nodiscard]] std::unique_ptr<Backend> make_reference_backend();

// What every backend's MixedSequence (kernels/mixed_sequence.hpp) must answer: rows are stored as stored_rows.hpp says,
// the history is packed as packing.hpp says, and queries attend as attention.hpp says, one at a time, in fp64.

/// Holds a sequence; see SequenceInput for what must outlive it. Throws std::logic_error if shapes or positions do not
/// fit together. It is slow: a sequence of T tokens takes T^2 / 2 dot products a head for every call.
[[nodiscard]] std::unique_ptr<MixedSequence> hold(const SequenceInput& input);

}  // namespace oscar::reference
