// SPDX-License-Identifier: MIT
// Every operation of kernels/backend.hpp by the plain loops of this folder: what kernels/cpu and kernels/cuda are
// tested against. Nothing is fast, nothing is parallel. Non-goal: serving a command; make_backend() does not know it.
#pragma once

#include <memory>

#include "kernels/backend.hpp"

namespace oscar::reference {

[[nodiscard]] std::unique_ptr<Backend> make_reference_backend();

}  // namespace oscar::reference
