// SPDX-License-Identifier: MIT
// The reference as a Backend, for tests: plain loops over packed bytes, slow.
#pragma once

#include <memory>

#include "kernels/backend.hpp"

namespace oscar::reference {

/// Every operation of kernels/backend.hpp by the plain loops of this folder: what kernels/cpu and kernels/cuda are
/// tested against. Nothing is fast, nothing is parallel: a held sequence of T tokens takes T^2 / 2 dot products a head
/// for every call, in fp64. Non-goal: serving a command; make_backend() does not know it.
[[nodiscard]] std::unique_ptr<Backend> make_reference_backend();

}  // namespace oscar::reference
