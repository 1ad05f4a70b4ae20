// SPDX-License-Identifier: MIT
// Hidden states of a live model in a folder, so that a fit that ended early need not run the layers again that it is
// done with. One file of a row per token (hidden_size values, and the keys and values that later layers share), two at
// most: a file counts only once everything was fitted that came before it. Writing takes a twentieth of the time at
// most.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <vector>

#include "base/status.hpp"
#include "model/run/runner.hpp"

namespace oscar {

class LiveStates {
 public:
  /// layers: those that open, ascending. is_kept: whether what was made of one of them is safe; may be called from any
  /// thread. `status` must outlive this.
  LiveStates(std::filesystem::path folder, std::vector<int> layers, std::function<bool(int layer)> is_kept,
             Status& status);

  /// Takes a pass that has not begun behind as many layers as possible, and says so.
  void restore(ModelPass& pass);
  /// Called between steps: keeps the states if it is time to. Where that fails, it warns and gives up.
  void offer(const ModelPass& pass);

 private:
  [[nodiscard]] std::filesystem::path file_of(int layer) const;
  [[nodiscard]] bool counts(int layer) const;
  void remove_before(int layer) const;

  std::filesystem::path folder_;
  std::vector<int> layers_;
  std::function<bool(int layer)> is_kept_;
  Status& status_;
  int newest_ = 0;  // that is there; 0 = none
  bool failed_ = false;
  std::chrono::steady_clock::time_point not_before_{};
};

}  // namespace oscar
