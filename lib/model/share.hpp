// SPDX-License-Identifier: MIT
// One model run by several processes together.
#pragma once

#include <functional>
#include <string>

namespace oscar {

/// Process `rank` of `ranks` runs the layers rank, rank + ranks, …, whose weights nobody else reads.
struct ModelShare {
  int rank = 0, ranks = 1;
  /// Shows a value to all processes, each key once.
  std::function<void(const std::string& key, const std::string& value)> put = {};
  /// Waits for a value and removes it.
  std::function<std::string(const std::string& key)> take = {};
  /// Of a process, for messages.
  std::function<std::string(int rank)> name = {};
  /// How long a link between GPUs may take to open.
  double open_seconds = 120;

  [[nodiscard]] bool runs(int layer) const { return layer % ranks == rank; }
  [[nodiscard]] int next() const { return (rank + 1) % ranks; }
  [[nodiscard]] int previous() const { return (rank + ranks - 1) % ranks; }
};

}  // namespace oscar
