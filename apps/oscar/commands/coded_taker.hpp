// SPDX-License-Identifier: MIT
// What oscar fit --recipe coded asks a model and takes from data, for one process and for several.
#pragma once

#include <set>
#include <vector>

#include "commands/fit_command.hpp"
#include "fit/coded_kept.hpp"

namespace oscar {

class CodedTaker {
 public:
  /// more: CodedOptions::more. All others must outlive this. Throws DataError for texts that the windows hold nearly
  /// all of.
  CodedTaker(const FitCommand& command, FitInput& input, Backend& backend, Status& status, std::set<Moment> more = {});

  /// All that decides what is taken, with fingerprints.
  [[nodiscard]] Json record();
  /// Asks the model what errors cost, in all layers; empty for a dump.
  [[nodiscard]] ErrorCosts costs();
  /// Returns the fit, which takes layers.
  [[nodiscard]] CodedFit fit();

 private:
  const FitCommand& command_;
  FitInput& input_;
  Backend& backend_;
  Status& status_;
  CodedOptions options_;
  std::vector<TokenSequence> texts_;  // about which the model is asked; none of a dump
};

}  // namespace oscar
