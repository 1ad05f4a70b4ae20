// SPDX-License-Identifier: MIT
// How far a model has come that takes a text through its layers.
#pragma once

#include <cstdint>

#include "base/status.hpp"

namespace oscar {

struct ModelProgress {
  std::int64_t tokens = 0;  // of the text
  int layers = 0;           // to run
  /// Tokens times layers. Of a layer with experts, what comes before those is a half.
  std::int64_t done = 0;
  std::uint64_t bytes = 0;  // of weights read so far

  [[nodiscard]] std::int64_t to_do() const { return tokens * layers - done; }
};

/// A status that is told how a model comes along.
class ModelStatus : public Status {
 public:
  /// From any thread.
  virtual void model_progress(const ModelProgress& at) = 0;
};

}  // namespace oscar
