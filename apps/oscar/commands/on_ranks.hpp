// SPDX-License-Identifier: MIT
// What "oscar fit" does as one of several processes, whatever they make together.
#pragma once

#include <functional>

#include "commands/fit_command.hpp"
#include "ranks/dealt_layers.hpp"
#include "ranks/ranks.hpp"

namespace oscar {

/// Takes this process's share of the machine, meets the others and does the task. The others end too, with the reason,
/// if it fails.
void run_on_ranks(const Place& place, const FitCommand& command, Context& context,
                  const std::function<void(Ranks&)>& task);

/// Work that processes do together, and how rank 0 ends it. What it refers to must outlive it.
struct RankedFit {
  DealtWork work;
  /// Writes the result; kept has all layers.
  std::function<void(const PartialFolder& kept)> finish;
};

/// Opens the backend and the input, and does the work that `plan` makes of them.
void fit_together(Ranks& ranks, const FitCommand& command, Context& context,
                  const std::function<RankedFit(FitInput&, Backend&)>& plan);

}  // namespace oscar
