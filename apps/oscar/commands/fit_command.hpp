// SPDX-License-Identifier: MIT
// What the files of "oscar fit" share: what was asked for, where rows come from, and the kinds of fits.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dump/live_source.hpp"
#include "fit/fit.hpp"
#include "model/run/runner.hpp"
#include "model_input.hpp"
#include "options.hpp"
#include "verify/methods.hpp"

namespace oscar {

struct FitCommand {
  std::filesystem::path dump, out, save_stats;
  std::vector<std::filesystem::path> stats;
  ModelInput input;
  std::string formats = "pt,h5";
  FitOptions fit;
  bool force = false, resume = false;
  bool recipe_by_default = false;
  /// Recipe auto: whether --no-coded was given, whether the coded cache competes, and if not, which option it does not
  /// have.
  bool no_coded = false, with_coded = false;
  std::string coded_left_out;
  int context = 0;  // of recipe coded: the longest text that will be served; 0: the model's context

  /// Where layers are kept by --resume until the set, or the file of statistics, is written.
  [[nodiscard]] std::filesystem::path partial_folder() const;
};

/// Where Q/K/V come from: a dump, or a model that runs while it is watched (nothing is dumped).
class FitInput {
 public:
  /// sequences: what the model reads, if an earlier input has read it, since a pipe can be read once; empty: to be
  /// read.
  FitInput(const FitCommand& command, const Context& context, std::vector<TokenSequence> sequences = {});

  [[nodiscard]] QkvSource& source() { return *source_; }
  /// Returns the model that runs; null for a dump.
  [[nodiscard]] ModelRunner* runner() { return runner_.get(); }
  /// What the model reads; empty for a dump.
  [[nodiscard]] const std::vector<TokenSequence>& sequences() const { return sequences_; }
  /// Over how many positions the sequences of recipe coded are spread; of others 0, since their texts begin at 0.
  [[nodiscard]] int context() const { return context_; }
  /// Returns a judge of candidates by the calibration sequences that are held out, and by probes made of them; an empty
  /// function without a model, or for a part of its layers. This and `backend` must outlive it.
  [[nodiscard]] ModelJudge judge(const FitOptions& options, Backend& backend);
  /// Returns the KL of the model's predictions with each cache, on the same sequences.
  [[nodiscard]] std::vector<double> judge_by_kl(const FitOptions& options, Backend& backend,
                                                std::span<const KvMethod> methods);
  /// Why the model cannot judge whole caches, or that there is none; empty: it can.
  [[nodiscard]] std::string why_not_judged() const;
  /// Has a model's hidden states kept beside the layers, and goes on with those there; nothing for a dump.
  void keep_states(const PartialFolder& partial);
  /// Waits until a model's first layer is loaded and a GPU's kernels and memory are there.
  void wait_until_ready();
  /// Adds fingerprints of the model's weights, or of the dump's layers, to a record of what decides a result.
  [[nodiscard]] Json with_fingerprints(Json record) const;

 private:
  std::filesystem::path model_, dump_;
  std::vector<TokenSequence> sequences_;
  int context_ = 0;
  bool judges_ = false;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<QkvSource> source_;
  LiveSource* live_ = nullptr;  // if that is what the source is
};

/// The options that are fit's own; those of its input are added before.
void add_fit_options(CLI::App& app, FitCommand& command);

/// After parsing: the recipe that options imply. Options of the paper's recipe mean that one where none is named, since
/// auto would choose them itself. Throws UsageError for options that do not go together.
void settle_recipe(const CLI::App& app, FitCommand& command);

/// Returns the one that --device asks for, with a GPU's libraries loaded: takes a fraction of a second there.
[[nodiscard]] std::unique_ptr<Backend> start_backend(const Context& context);

/// Throws UsageError if a file is where statistics go, unless --force is given and is_ours(file), which may throw.
void require_replaceable_statistics(const FitCommand& command, bool (*is_ours)(const std::filesystem::path&));
/// Tells people and --json (there only if no set is made of them) of statistics that were written.
void report_statistics(const FitCommand& command, std::size_t layers, const std::vector<CalibrationData>& parts,
                       double seconds, Context& context);

/// Recipe coded.
void fit_coded_set(const FitCommand& command, Context& context);

/// Recipe auto where the target can read the coded cache, too: the model judges that against a rotation set. Returns
/// false, and has written nothing, where the search among rotation sets is to decide, and says why; `sequences` then
/// has the text that the model reads, which may have come from a pipe.
[[nodiscard]] bool fit_coded_if_best(const FitCommand& command, std::vector<TokenSequence>& sequences,
                                     Context& context);

}  // namespace oscar
