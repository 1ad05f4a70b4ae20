// SPDX-License-Identifier: MIT
// One piece of work on the layers of a source by several processes. Whole layers of a dump are dealt like cards, and
// each process reads its own. A live model is shared by its text: every process reads its part of each layer, sums are
// added in the order of the text (moments/shared_sums.hpp), and the processes finish layers by turns. Rank 0 collects
// what is made. A layer does not depend on who made it, so that the result has the bits of one process's.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/json.hpp"
#include "base/status.hpp"
#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "ranks/ranks.hpp"
#include "work/partial_folder.hpp"

namespace oscar {

struct DealtWork {
  /// All that decides the result: what layers that are kept must be of (PartialFolder).
  Json record;
  /// What else all processes must have alike, since last bits depend on it: devices, types.
  Json arithmetic = Json::object();
  /// Where layers are kept until the result is written.
  std::filesystem::path folder;
  /// Whether layers that are there already are used.
  bool resume = false;
  /// Makes the layers, all of a shared text or those that this process was dealt, and keeps them.
  std::function<void(std::span<const int> layers, const PartialFolder& kept)> make;
};

/// Does the work. Returns to rank 0 the folder, which then has all layers, and nothing to the others. Throws DataError
/// in a process that has other data, options or arithmetic than rank 0.
[[nodiscard]] std::optional<PartialFolder> make_together(const DealtWork& work, QkvSource& source, Ranks& ranks,
                                                         Status& status);

/// Throws DataError if this process has other members than rank 0. key: names the comparison.
void require_same(const std::string& key, const Json& what, Ranks& ranks);

/// Returns what this process reads of the text that a model reads. work_shape: that of the backend, asked for once.
[[nodiscard]] TextShare share_of_text(Ranks& ranks, std::function<WorkShape()> work_shape);

}  // namespace oscar
