// SPDX-License-Identifier: MIT
// Calibration data in two parts: what candidates are fitted on, and what they are judged on. Every third sequence, or
// the last of two, is held out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/errors.hpp"

namespace oscar {

/// There is not enough to fit on one part and to judge on another.
struct TooLittleData : DataError {
  using DataError::DataError;
};

class HeldOutSplit {
 public:
  /// Throws TooLittleData if there are fewer than two sequences.
  explicit HeldOutSplit(std::int64_t num_sequences)
      : stride_(static_cast<std::size_t>(std::clamp<std::int64_t>(num_sequences, 1, 3))) {
    if (num_sequences >= 2) return;
    throw TooLittleData("the held-out set is empty: there is only one sequence to calibrate on", "--recipe auto",
                        "give at least two sequences (a smaller --seq-len cuts a long text), or choose a recipe");
  }

  /// Whether a sequence, counted from 0, is one that candidates are judged on.
  [[nodiscard]] bool held_out(std::size_t sequence) const { return sequence % stride_ == stride_ - 1; }

 private:
  std::size_t stride_;
};

}  // namespace oscar
