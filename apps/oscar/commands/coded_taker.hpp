// SPDX-License-Identifier: MIT
// What oscar fit --recipe coded asks a model and takes from data, for one process and for several.
#pragma once

#include <map>
#include <span>

#include "commands/fit_command.hpp"
#include "fit/coded_partial.hpp"

namespace oscar {

class CodedTaker {
 public:
  /// All must outlive this. Throws DataError for texts that the windows hold nearly all of.
  CodedTaker(const FitCommand& command, FitInput& input, Backend& backend, Status& status);

  /// All that decides what is taken, with fingerprints.
  [[nodiscard]] Json record();
  /// Asks the model what errors cost, in all layers; empty for a dump.
  [[nodiscard]] std::map<int, ErrorCost> costs();
  /// Takes some layers, which `partial` keeps: see take_coded_layers().
  void take(std::span<const int> layers, const std::map<int, ErrorCost>& costs, const PartialCodedData& partial);
  /// Takes all layers that `partial` lacks; null: all.
  [[nodiscard]] CodedData take_all(const std::map<int, ErrorCost>& costs, const PartialCodedData* partial);

 private:
  [[nodiscard]] MeasureDamage measure();

  const FitCommand& command_;
  FitInput& input_;
  Backend& backend_;
  Status& status_;
  CodedOptions options_;
  std::vector<TokenSequence> texts_;  // about which the model is asked; none of a dump
};

}  // namespace oscar
