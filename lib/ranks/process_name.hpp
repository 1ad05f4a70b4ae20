// SPDX-License-Identifier: MIT
// How a process, and what it runs on, is named to the others of its job.
#pragma once

#include <string>

namespace oscar {

/// "rank 1 (node7, process 123)"
[[nodiscard]] std::string name_of_process(int rank);

/// Equal for processes of one machine that may run on the same cores, and for no others.
[[nodiscard]] std::string name_of_cores();

}  // namespace oscar
