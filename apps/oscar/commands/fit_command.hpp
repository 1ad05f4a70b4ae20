// SPDX-License-Identifier: MIT
// What the files of "oscar fit" share.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dump/live_source.hpp"
#include "fit/coded_fit.hpp"
#include "fit/fit.hpp"
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
  bool recipe_by_default = false;
  /// Recipe auto: whether --no-coded was given, whether the coded cache competes, and if not, which option it does not
  /// have.
  bool no_coded = false, with_coded = false;
  std::string coded_left_out;
  int context = 0;  // of recipe coded: the longest text that will be served; 0: the model's context
};

/// Wall time of the parts of a run.
struct Times {
  double startup = 0;  // until the first layer is read
  double writing = 0;
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
  /// Returns a judge of candidates; an empty function without a model.
  [[nodiscard]] ModelJudge judge(const FitOptions& options, Backend& backend);
  /// Why the model cannot judge whole caches, or that there is none; empty: it can.
  [[nodiscard]] std::string why_not_judged() const;
  /// Has a model's hidden states kept beside the layers, and goes on with those there; nothing for a dump.
  void keep_states(const PartialFolder& partial);
  /// Waits until a model's first layer is loaded and a GPU's kernels and memory are there.
  void wait_until_ready();

 private:
  std::vector<TokenSequence> sequences_;
  int context_ = 0;
  bool judges_ = false;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<QkvSource> source_;
  LiveSource* live_ = nullptr;  // if that is what the source is
};

/// The options that are fit's own; those of its input are added before.
void add_fit_options(CLI::App& app, FitCommand& command);

/// Options of the paper's recipe mean that one where none is named: auto would choose them itself. After parsing.
void settle_recipe(const CLI::App& app, FitCommand& command);

/// The one that --device asks for, with a GPU's libraries loaded: takes a fraction of a second there.
[[nodiscard]] std::unique_ptr<Backend> start_backend(const Context& context);

/// Tells people and --json what was written.
void report(const FitResult& result, const Times& times, const FitCommand& command, const Backend& backend,
            Context& context);

/// describe_fit() of the input, with fingerprints: what layers that are kept must be of.
[[nodiscard]] Json fit_record(FitInput& input, const FitCommand& command);

/// A record of what decides a result, with fingerprints of the model's weights or of the dump's layers.
[[nodiscard]] Json with_fingerprints(Json record, FitInput& input, const FitCommand& command);

/// Where layers are kept until the set is written.
[[nodiscard]] std::filesystem::path partial_folder(const FitCommand& command);

/// Where layers of statistics are kept until their file is written.
[[nodiscard]] std::filesystem::path statistics_folder(const FitCommand& command);

/// Recipe coded. Throws UsageError for options that it does not know.
void fit_coded_set(const FitCommand& command, Context& context);

/// What recipe coded takes from its data; with --resume it is kept, and what is there already is not taken again. more:
/// CodedOptions::more, not with --resume.
[[nodiscard]] CodedData coded_data_of(const FitCommand& command, FitInput& input, Backend& backend, Status& status,
                                      const std::set<Moment>& more = {});

/// Where that is kept, until what is made of it is written.
[[nodiscard]] std::filesystem::path coded_partial_folder(const FitCommand& command);

/// The set of recipe coded, which nobody has written yet.
[[nodiscard]] CodedSet coded_set_of(const FitCommand& command, const CodedData& data, Backend& backend);

/// Writes it, and tells people and --json. seconds: of the fit.
void write_coded_fit(const FitCommand& command, const CodedSet& set, double seconds, const Backend& backend,
                     Context& context);

/// Recipe auto where the target can read the coded cache, too: the model judges that against a rotation set. Returns
/// false, and has written nothing, where the search among rotation sets is to decide, and says why; `sequences` then
/// has the text that the model reads, which may have come from a pipe.
[[nodiscard]] bool fit_coded_if_best(const FitCommand& command, std::vector<TokenSequence>& sequences,
                                     Context& context);

/// --stats and --save-stats: sums of parts of the data, and rotations made of them.
void fit_in_parts(FitCommand& command, Context& context);

}  // namespace oscar
