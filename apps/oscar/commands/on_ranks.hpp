// SPDX-License-Identifier: MIT
// What "oscar fit" does as one of several processes, whatever they make together.
#pragma once

#include <functional>
#include <vector>

#include "base/json.hpp"
#include "commands/fit_command.hpp"
#include "ranks/ranks.hpp"
#include "work/partial_folder.hpp"

namespace oscar {

/// Takes this process's share of the machine, meets the others and does the task. The others end too, with the reason,
/// if it fails.
void run_on_ranks(const Place& place, const FitCommand& command, Context& context,
                  const std::function<void(Ranks&)>& task);

/// Runs a task; if it fails, tells the others why and interrupts what it began, before anybody waits for that.
void tell_failure(Ranks& ranks, const std::function<void()>& task);

/// Throws DataError if this rank was started with other data or options than rank 0, or computes on another kind of
/// device or runs the model in another type, whose sums have other last bits. record: all that decides what this rank
/// makes.
void require_same_work(Json record, FitInput& input, const Backend& backend, Ranks& ranks);

/// Where finished layers are kept, as this rank sees it.
struct SharedFolder {
  PartialFolder folder;
  bool shared;  // it is rank 0's
};
/// Begun by rank 0, or gone on with (resume), and then known to all. A rank that does not see rank 0's folder begins
/// one of its own. of: see PartialFolder.
[[nodiscard]] SharedFolder open_together(const std::filesystem::path& folder, const Json& of, bool resume, Ranks& ranks,
                                         Status& status);

/// Layers that rank 0's folder lacks.
[[nodiscard]] std::vector<int> missing_layers(const std::vector<int>& all, const PartialFolder& folder, Ranks& ranks);

/// Layers that rank `rank` of `size` fits: they are dealt like cards.
[[nodiscard]] std::vector<int> share_of(const std::vector<int>& layers, int rank, int size);

/// What this rank reads of the text that a model reads. work_shape: that of the backend, asked for once.
[[nodiscard]] TextShare share_of_text(Ranks& ranks, std::function<WorkShape()> work_shape);

}  // namespace oscar
