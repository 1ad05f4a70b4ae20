// SPDX-License-Identifier: MIT
// What the files of "oscar fit" share: what was asked for, and where rows come from.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dump/live_source.hpp"
#include "fit/take.hpp"
#include "model/run/runner.hpp"
#include "model_input.hpp"
#include "options.hpp"

namespace oscar {

struct FitCommand {
  std::filesystem::path dump, out, save_stats;
  std::vector<std::filesystem::path> stats;
  ModelInput input;
  std::string formats = "pt,h5";
  FitOptions fit;
  bool force = false, resume = false;

  /// Where layers are kept by --resume until the set, or the file of statistics, is written.
  [[nodiscard]] std::filesystem::path partial_folder() const;
};

/// Where Q/K/V come from: a dump, or a model that runs while it is watched (nothing is dumped).
class FitInput {
 public:
  FitInput(const FitCommand& command, const Context& context);

  [[nodiscard]] FitData data() { return {*source_, runner_.get(), sequences_, context_, uncodable_, outlives_}; }
  /// Has a model's hidden states kept beside the layers, and goes on with those there; nothing for a dump.
  void keep_states(const PartialFolder& partial);
  /// Waits until a model's first layer is loaded and a GPU's kernels and memory are there.
  void wait_until_ready();
  /// Adds fingerprints of the model's weights, or of the dump's layers, to a record of what decides a result.
  [[nodiscard]] Json with_fingerprints(Json record) const;

 private:
  std::filesystem::path model_, dump_;
  std::vector<TokenSequence> sequences_;  // what the model reads
  int context_ = 0;                       // over how many positions they are spread
  std::string uncodable_;
  bool outlives_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<QkvSource> source_;
  LiveSource* live_ = nullptr;  // if that is what the source is
};

/// The options that are fit's own; those of its input are added before.
void add_fit_options(CLI::App& app, FitCommand& command);
/// After parsing: throws UsageError for inputs and outputs that do not go together, and for options that do not.
void check_usage(const CLI::App& app, FitCommand& command);

}  // namespace oscar
