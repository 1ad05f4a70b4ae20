// SPDX-License-Identifier: MIT
// The final states of a pass whose decoder computes them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/run/decoder.hpp"
#include "model/run/runner.hpp"

namespace oscar {

class DecodedStates : public FinalStates {
 public:
  /// Loads the head; `decoder` must outlive it.
  DecodedStates(const Decoder& decoder, std::vector<std::unique_ptr<Rows>> hidden)
      : decoder_(decoder), head_(decoder.load_head()), hidden_(std::move(hidden)) {}

  void logits(std::size_t sequence, std::int64_t first, std::span<float> out) const override {
    decoder_.logits(*head_, *hidden_.at(sequence), first, out);
  }
  [[nodiscard]] int concurrent_calls() const override { return decoder_.concurrent_sequences(); }

 private:
  const Decoder& decoder_;
  std::shared_ptr<const LoadedWeights> head_;
  std::vector<std::unique_ptr<Rows>> hidden_;
};

}  // namespace oscar
