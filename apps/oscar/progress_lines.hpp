// SPDX-License-Identifier: MIT
// When progress is worth a line in a log, where nothing can be drawn over.
#pragma once

#include <chrono>
#include <string>

namespace oscar {

class ProgressLines {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// every_end: the end of each stage is told, else only of those that took long enough to be told before.
  ProgressLines(std::chrono::seconds interval, bool every_end, Time now)
      : interval_(interval), every_end_(every_end), last_(now) {}

  /// Whether to tell that `stage` stands where it does, and at its end if `end` is set. Takes a true answer as told.
  [[nodiscard]] bool is_due(const std::string& stage, bool end, Time now) {
    if (stage != stage_) stage_ = stage, told_ = false;
    const bool due = now - last_ >= interval_ || (end && (every_end_ || told_));
    if (!due) return false;
    last_ = now;
    told_ = !end;
    return true;
  }

 private:
  std::chrono::seconds interval_;
  bool every_end_;
  Time last_;
  std::string stage_;
  bool told_ = false;
};

}  // namespace oscar
