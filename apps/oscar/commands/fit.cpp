// SPDX-License-Identifier: MIT
// oscar fit: which kind of fit is asked for, and those that make rotation sets: of rows, or of statistics.
#include "fit/fit.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "base/atomic_file.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "commands/commands.hpp"
#include "commands/fit_command.hpp"
#include "fit/layer_data.hpp"
#include "fit/search.hpp"
#include "set/formats.hpp"
#include "set/manifest.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

using Clock = std::chrono::steady_clock;

Json layers_of(const RotationPart& set) {
  Json layers = Json::array();
  for (const LayerRotation& layer : set.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"key_clip_ratio", layer.key.clip_ratio},
                      {"value_clip_ratio", layer.value.clip_ratio}});
    for (const auto& [name, side] : {std::pair("key", &layer.key), std::pair("value", &layer.value)}) {
      const std::string prefix = name + std::string("_");
      if (!side->head_clip_ratios.empty()) layers.back()[prefix + "clip_ratio_per_head"] = side->head_clip_ratios;
      if (side->scores.contains("stretch")) layers.back()[prefix + "stretch"] = side->scores["stretch"];
    }
  }
  return layers;
}

/// Writes the set, and tells people and --json. startup: seconds until the first layer was read.
void finish(const FitResult& result, double startup, const FitCommand& command, const Backend& backend,
            Context& context) {
  const RotationPart& set = result.set;
  const auto fitted = Clock::now();
  write_rotation_set(command.out, set, parse_rotation_formats(command.formats), command.force);
  const double writing = seconds_since(fitted);
  Status& status = *context.status;
  status.notice(fmt::format("fitted {} on {} in {:.2f} s, {}",
                            plural(static_cast<std::int64_t>(set.layers.size()), "layer"),
                            plural(set.calibration.tokens, "token"), result.seconds, backend.description()));
  if (set.recipe.contains("clip_sample")) {
    status.notice("clip ratios were fitted on " + set.recipe["clip_sample"].get<std::string>());
  }
  status.notice("wrote " + command.out.string());
  emit_json(context, {{"rotation_set", command.out.string()},
                      {"device", backend.description()},
                      {"recipe", set.recipe},
                      {"tokens", set.calibration.tokens},
                      {"sequences", set.calibration.sequences},
                      {"layers", layers_of(set)},
                      {"seconds", {{"startup", startup}, {"fit", result.seconds}, {"writing", writing}}}});
}

/// What layers that are kept must be of.
Json record_of(FitInput& input, const FitOptions& options) {
  const RotationPart unfitted =
      options.recipe == "auto" ? unfitted_search(input.source(), options) : unfitted_set(input.source(), options);
  return input.with_fingerprints(describe_fit(unfitted, options));
}

/// A fit of rows, whose recipe may turn out to be another than it was to be.
class RowFit {
 public:
  /// sequences: the text, if it was read already.
  RowFit(FitCommand& command, std::vector<TokenSequence> sequences, Context& context)
      : command_(command), context_(context), status_(*context.status) {
    // A GPU takes a while to start: meanwhile the input is opened.
    std::future<std::unique_ptr<Backend>> starting =
        std::async(std::launch::async, [&context] { return start_backend(context); });
    input_.emplace(command, context, std::move(sequences));
    if (const auto few = too_few_tokens(input_->source(), command.fit)) status_.notice(*few);
    backend_ = starting.get();
  }

  void run() {
    settle_resumed_recipe();
    keep_layers(PartialFolder::Earlier::kUse);
    input_->wait_until_ready();
    const double startup = seconds_since(context_.started);
    finish(fit_layers(), startup, command_, *backend_, context_);
    if (kept_) kept_->remove();
  }

 private:
  /// A fit without enough data for recipe auto, which was interrupted, goes on as what it became.
  void settle_resumed_recipe() {
    const std::filesystem::path folder = command_.partial_folder();
    if (!command_.resume || !command_.recipe_by_default || !std::filesystem::exists(folder)) return;
    FitOptions plain = command_.fit;
    plain.recipe = "oscar";
    if (!PartialFolder::is_of(folder, record_of(*input_, plain))) return;
    command_.fit = plain;
    status_.notice("recipe oscar instead of auto, as in the fit that goes on");
  }

  /// The layers that --resume keeps, and hidden states beside them.
  void keep_layers(PartialFolder::Earlier earlier) {
    if (!command_.resume) return;
    kept_.emplace(command_.partial_folder(), record_of(*input_, command_.fit), earlier, &status_);
    input_->keep_states(*kept_);
  }

  [[nodiscard]] FitResult fit_once() {
    const FitHooks hooks{.judge = input_->judge(command_.fit, *backend_), .kept = kept_ ? &*kept_ : nullptr};
    return fit(input_->source(), command_.fit, *backend_, status_, hooks);
  }

  /// Where nobody asked for a recipe, and there is too little data to choose one by, the paper's is fitted.
  [[nodiscard]] FitResult fit_layers() {
    try {
      return fit_once();
    } catch (const TooLittleData& error) {
      if (!command_.recipe_by_default) throw;
      status_.notice("recipe oscar instead of auto: " + std::string(error.what()));
    }
    command_.fit.recipe = "oscar";
    std::vector<TokenSequence> sequences = input_->sequences();
    input_.reset();  // a live model cannot go back
    input_.emplace(command_, context_, std::move(sequences));
    keep_layers(PartialFolder::Earlier::kReplace);
    return fit_once();
  }

  FitCommand& command_;
  Context& context_;
  Status& status_;
  std::optional<FitInput> input_;
  std::unique_ptr<Backend> backend_;
  std::optional<PartialFolder> kept_;
};

bool reads_data(const FitCommand& command) { return !command.dump.empty() || !command.input.model.empty(); }

/// Statistics may be replaced by statistics; somebody's weights, or letters, may not.
bool is_statistics(const std::filesystem::path& file) {
  return !std::filesystem::is_regular_file(file) ||
         SafetensorsFile(file).metadata().at("schema") == "oscar.statistics.v1";
}

void check_parts(const FitCommand& command) {
  const bool saves = !command.save_stats.empty(), fits = !command.out.empty(), data = reads_data(command);
  const auto refuse = [](bool wrong, const char* what, const char* where, const char* remedy) {
    if (wrong) throw UsageError(what, where, remedy);
  };
  refuse(data && fits, "statistics are of a part of the data, a rotation set is of all of it", "--out",
         "save the statistics of each part, then give them to --stats with --out");
  refuse(data && !saves, "--stats beside data is a second pass over a part of it", "--save-stats",
         "say where its statistics go: --save-stats FILE");
  if (saves) require_replaceable_statistics(command, is_statistics);
  if (data) return;
  refuse(!(command.input.layers.empty() && command.input.texts.empty() && command.input.tokens.empty()),
         "--stats alone looks at no text, tokens or choice of layers", "oscar fit",
         "leave --text, --tokens and --layers out");
  refuse(command.resume, "statistics are added up at once, with nothing to go on with", "--resume", "leave it out");
  refuse(command.stats.empty(), "nothing to take statistics of", "--save-stats", "give --dump, --model or --stats");
  refuse(!saves && !fits, "no folder for the rotation set", "--stats", "give --out DIR, or --save-stats FILE to merge");
}

void save(const Statistics& statistics, const FitCommand& command, Clock::time_point started, Context& context) {
  write_statistics(command.save_stats, statistics);
  report_statistics(command, statistics.layers.size(), statistics.data, seconds_since(started), context);
}

/// With --resume, layers are kept as soon as they are taken, and those that are there already are not taken again.
void take_and_save(const FitCommand& command, const Statistics* first_pass, Context& context) {
  const auto started = Clock::now();
  const std::unique_ptr<Backend> backend = make_backend(context.common.device, *context.status);
  FitInput input(command, context);
  Status& status = *context.status;
  std::optional<PartialFolder> kept;
  if (command.resume) {
    Json record = record_of(input, command.fit);
    record["first_pass"] = first_pass != nullptr ? query_moments_sha256(*first_pass) : "";
    kept.emplace(command.partial_folder(), record, PartialFolder::Earlier::kUse, &status);
  }
  const PartialFolder* const folder = kept ? &*kept : nullptr;
  save(take_statistics(input.source(), command.fit, first_pass, folder, *backend, status), command, started, context);
  if (kept) kept->remove();
}

/// --stats and --save-stats: sums of parts of the data, and rotations made of them.
void fit_in_parts(FitCommand& command, Context& context) {
  if (command.recipe_by_default) command.fit.recipe = "oscar";
  const auto started = Clock::now();
  std::optional<Statistics> given;
  if (!command.stats.empty()) given = read_statistics(command.stats);
  if (reads_data(command)) return take_and_save(command, given ? &*given : nullptr, context);
  if (!command.save_stats.empty()) save(*given, command, started, context);
  if (command.out.empty()) return;
  const std::unique_ptr<Backend> backend = make_backend(context.common.device, *context.status);
  const double startup = seconds_since(context.started);
  finish(fit(*given, command.fit, *backend, *context.status), startup, command, *backend, context);
}

/// Processes of one launcher would all do the same work, and write to the same place: only parts of the data make sense
/// there, which each takes of its own.
void require_one_process(const FitCommand& command, Status& status) {
  for (const char* const variable : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* const value = std::getenv(variable);
    if (value == nullptr || std::atoi(value) < 2) continue;
    const std::string one = "this is one of " + std::string(value) + " processes";
    if (!command.out.empty()) {
      throw UsageError(one + ", and each would fit the same set", variable,
                       "save the statistics of a part of the data in each (--save-stats), and give them to one "
                       "oscar fit --stats; or start oscar fit with env -u " +
                           std::string(variable));
    }
    status.notice(one + " (" + variable + "): its statistics are of the data that it was given itself");
    return;
  }
}

void run(FitCommand& command, Context& context) {
  require_one_process(command, *context.status);
  (void)parse_rotation_formats(command.formats);
  const bool coded = command.fit.recipe == "coded";
  const bool parts = !command.stats.empty() || !command.save_stats.empty();
  if (parts && !coded) check_parts(command);
  if (command.out.empty() && command.save_stats.empty()) {
    throw UsageError("no folder for the rotation set", "oscar fit", "give --out DIR");
  }
  // Fails now rather than after the work.
  if (!command.out.empty()) (void)AtomicFolder(command.out, replaceable_set(command.force));
  if (coded) return fit_coded_set(command, context);
  if (parts) return fit_in_parts(command, context);
  if (!command.coded_left_out.empty()) {
    context.status->notice("recipe auto leaves the coded cache out: " + command.coded_left_out);
  }
  std::vector<TokenSequence> sequences;
  if (command.with_coded && fit_coded_if_best(command, sequences, context)) return;
  RowFit(command, std::move(sequences), context).run();
}

}  // namespace

std::filesystem::path FitCommand::partial_folder() const {
  std::filesystem::path folder = save_stats.empty() ? out : save_stats;
  if (!folder.has_filename()) folder = folder.parent_path();  // SET/
  return folder += ".partial";
}

std::unique_ptr<Backend> start_backend(const Context& context) {
  std::unique_ptr<Backend> backend = make_backend(context.common.device, *context.status);
  warm_up(*backend);
  return backend;
}

void require_replaceable_statistics(const FitCommand& command, bool (*is_ours)(const std::filesystem::path&)) {
  const std::filesystem::path& file = command.save_stats;
  const std::string option = "--save-stats " + file.string();
  if (!std::filesystem::exists(file)) return;
  if (!command.force) {
    throw UsageError("there is such a file already", option, "name another, or give --force to replace it");
  }
  try {
    if (is_ours(file)) return;
  } catch (const std::exception&) {  // whatever it is, we did not write it
  }
  throw UsageError("refusing to replace a file that does not hold such statistics", option,
                   "name another file, or remove it yourself");
}

void report_statistics(const FitCommand& command, std::size_t layers, const std::vector<CalibrationData>& parts,
                       double seconds, Context& context) {
  std::int64_t tokens = 0;
  for (const CalibrationData& part : parts) tokens += part.tokens;
  context.status->notice(fmt::format("statistics of {}, {} in {}, {:.2f} s: wrote {}",
                                     plural(static_cast<std::int64_t>(layers), "layer"), plural(tokens, "token"),
                                     plural(std::ssize(parts), "part"), seconds, command.save_stats.string()));
  if (!command.out.empty()) return;  // what is fitted will be told
  emit_json(context, {{"statistics", command.save_stats.string()},
                      {"layers", layers},
                      {"parts", parts.size()},
                      {"tokens", tokens},
                      {"seconds", seconds}});
}

void register_fit(CLI::App& app, Context& context) {
  auto command = std::make_shared<FitCommand>();
  command->fit.recipe = "auto";
  CLI::App* fit = app.add_subcommand("fit", "Fit per-layer K and V rotations and clip ratios");
  fit->footer(
      "Examples:\n"
      "  oscar fit --model Qwen3-8B --text calibration.jsonl --out set\n"
      "  oscar fit --model hf://Qwen/Qwen3-8B --out set\n"
      "  oscar fit --dump dump --target sglang-v3 --out set");
  fit->add_option("--dump", command->dump, "Folder written by oscar dump or by a server")
      ->type_name("DIR")
      ->group("Input");
  fit->add_option(
         "--stats", command->stats,
         "Files of --save-stats instead of data, added up; or, beside data, what to weigh it by. Recipe coded: "
         "costs of errors are means over the files, by tokens")
      ->type_name("FILE")
      ->group("Input");
  add_model_input_options(*fit, command->input);
  add_fit_options(*fit, *command);
  add_json_option(*fit, context);
  fit->callback([command, fit, &context] {
    settle_recipe(*fit, *command);
    run(*command, context);
  });
}

}  // namespace oscar
