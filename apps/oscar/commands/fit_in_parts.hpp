// SPDX-License-Identifier: MIT
// Statistics as oscar fit takes and writes them, by one process or by several.
#pragma once

#include <chrono>

#include "commands/fit_command.hpp"
#include "fit/take_statistics.hpp"

namespace oscar {

/// Where layers are kept until the file is written, if they are.
[[nodiscard]] std::filesystem::path statistics_folder(const FitCommand& command);

/// All that decides the statistics.
[[nodiscard]] Json statistics_record(FitInput& input, const FitCommand& command, const StatisticsTaker& taker);

/// Writes the file and tells people and --json, also the time since `start`.
void save(const Statistics& statistics, const FitCommand& command, std::chrono::steady_clock::time_point start,
          Context& context);

/// Takes them as one of several processes. first_pass: null for a first pass.
void statistics_on_ranks(Ranks& ranks, const FitCommand& command, const Statistics* first_pass, Context& context);

}  // namespace oscar
