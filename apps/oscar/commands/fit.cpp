// SPDX-License-Identifier: MIT
#include "fit/fit.hpp"

#include <fmt/format.h>

#include <algorithm>
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
#include "rotation/formats.hpp"
#include "rotation/manifest.hpp"

namespace oscar {
namespace {

Json to_json(const FitResult& result, const Times& times, const std::filesystem::path& out, const std::string& device) {
  Json layers = Json::array();
  for (const LayerRotation& layer : result.set.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"key_clip_ratio", layer.key.clip_ratio},
                      {"value_clip_ratio", layer.value.clip_ratio}});
    for (const auto& [name, side] : {std::pair("key", &layer.key), std::pair("value", &layer.value)}) {
      const std::string prefix = name + std::string("_");
      if (!side->head_clip_ratios.empty()) layers.back()[prefix + "clip_ratio_per_head"] = side->head_clip_ratios;
      if (side->scores.contains("stretch")) layers.back()[prefix + "stretch"] = side->scores["stretch"];
    }
  }
  return {{"rotation_set", out.string()},
          {"device", device},
          {"recipe", result.set.recipe},
          {"tokens", result.set.calibration.tokens},
          {"sequences", result.set.calibration.sequences},
          {"layers", std::move(layers)},
          {"seconds", {{"startup", times.startup}, {"fit", result.seconds}, {"writing", times.writing}}}};
}

/// "1.52", or "1.31 to 1.64" over the matrices of a side.
std::string range_of(const Json& values, const char* format) {
  const auto list = values.get<std::vector<double>>();
  const auto [low, high] = std::minmax_element(list.begin(), list.end());
  const std::string from = fmt::format(fmt::runtime(format), *low), to = fmt::format(fmt::runtime(format), *high);
  return from == to ? from : from + " to " + to;
}

/// What each stretch promises, and what it costs, layer by layer.
void report_stretches(const RotationSet& set, Status& status) {
  for (const LayerRotation& layer : set.layers) {
    if (!layer.key.scores.contains("stretch")) continue;
    const Json& stretch = layer.key.scores["stretch"];
    status.notice(fmt::format("layer {}: keys: predicted gain {} over any rotation, condition {}, bfloat16 disturbs {}",
                              layer.layer_id, range_of(stretch["predicted_gain"], "{:.2f}"),
                              range_of(stretch["condition"], "{:.1f}"),
                              range_of(stretch["bf16_disturbance"], "{:.1e}")));
  }
}

}  // namespace

std::unique_ptr<Backend> start_backend(const Context& context) {
  std::unique_ptr<Backend> backend = make_backend(context.common.device, *context.status);
  warm_up(*backend);
  return backend;
}

std::filesystem::path partial_folder(const FitCommand& command) {
  std::filesystem::path folder = command.out.has_filename() ? command.out : command.out.parent_path();  // SET and SET/
  return folder += ".partial";
}

void report(const FitResult& result, const Times& times, const FitCommand& command, const Backend& backend,
            Context& context) {
  Status& status = *context.status;
  status.notice(fmt::format("fitted {} on {} in {:.2f} s, {}",
                            plural(static_cast<std::int64_t>(result.set.layers.size()), "layer"),
                            plural(result.set.calibration.tokens, "token"), result.seconds, backend.description()));
  if (result.set.recipe.contains("clip_sample")) {
    status.notice("clip ratios were fitted on " + result.set.recipe["clip_sample"].get<std::string>());
  }
  report_stretches(result.set, status);
  status.notice("wrote " + command.out.string());
  emit_json(context, to_json(result, times, command.out, backend.description()));
}

namespace {

/// The layers that --resume keeps, and hidden states beside them.
void keep_layers(const FitCommand& command, FitInput& input, PartialFolder::Earlier earlier,
                 std::optional<PartialFolder>& partial, Status& status) {
  if (!command.resume) return;
  partial.emplace(partial_folder(command), fit_record(input, command), earlier, &status);
  input.keep_states(*partial);
}

/// Where nobody asked for a recipe, and there is too little data to choose one by, the paper's is fitted.
FitResult fit_input(FitCommand& command, std::unique_ptr<FitInput>& input, Backend& backend, FitHooks hooks,
                    std::optional<PartialFolder>& partial, const Context& context) {
  Status& status = *context.status;
  const auto fit_once = [&] {
    hooks.judge = input->judge(command.fit, backend);
    return fit(input->source(), command.fit, backend, status, hooks);
  };
  try {
    return fit_once();
  } catch (const TooLittleData& error) {
    if (!command.recipe_by_default) throw;
    status.notice("recipe oscar instead of auto: " + std::string(error.what()));
  }
  command.fit.recipe = "oscar";
  hooks = {};  // they refer to the input
  std::vector<TokenSequence> sequences = input->sequences();
  input.reset();  // a live model cannot go back
  input = std::make_unique<FitInput>(command, context, std::move(sequences));
  keep_layers(command, *input, PartialFolder::Earlier::kReplace, partial, status);
  hooks.kept = partial ? &*partial : nullptr;
  return fit_once();
}

/// A fit without enough data for recipe auto, which was interrupted, goes on as what it became.
void settle_resumed_recipe(FitCommand& command, FitInput& input, Status& status) {
  if (!command.resume || !command.recipe_by_default || !std::filesystem::exists(partial_folder(command))) return;
  FitCommand plain = command;
  plain.fit.recipe = "oscar";
  if (!PartialFolder::is_of(partial_folder(command), fit_record(input, plain))) return;
  command.fit.recipe = "oscar";
  status.notice("recipe oscar instead of auto, as in the fit that goes on");
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

/// sequences: the text, if it was read already.
void fit_set(FitCommand& command, std::vector<TokenSequence> sequences, Context& context) {
  const RotationFormats formats = parse_rotation_formats(command.formats);
  // A GPU takes a while to start: meanwhile the input is opened.
  std::future<std::unique_ptr<Backend>> starting =
      std::async(std::launch::async, [&context] { return start_backend(context); });
  auto input = std::make_unique<FitInput>(command, context, std::move(sequences));
  if (const auto few = too_few_tokens(input->source(), command.fit)) context.status->notice(*few);
  const std::unique_ptr<Backend> backend = starting.get();
  settle_resumed_recipe(command, *input, *context.status);
  std::optional<PartialFolder> partial;
  keep_layers(command, *input, PartialFolder::Earlier::kUse, partial, *context.status);
  FitHooks hooks{.kept = partial ? &*partial : nullptr};
  input->wait_until_ready();
  Times times{.startup = seconds_since(context.started)};
  const FitResult result = fit_input(command, input, *backend, hooks, partial, context);
  const auto fitted = std::chrono::steady_clock::now();
  write_rotation_set(command.out, result.set, formats, command.force);
  if (partial) partial->remove();
  times.writing = seconds_since(fitted);
  report(result, times, command, *backend, context);
}

void run(FitCommand& command, Context& context) {
  require_one_process(command, *context.status);
  if (command.fit.recipe == "coded") return fit_coded_set(command, context);
  if (!command.stats.empty() || !command.save_stats.empty()) return fit_in_parts(command, context);
  if (command.out.empty()) throw UsageError("no folder for the rotation set", "oscar fit", "give --out DIR");
  (void)parse_rotation_formats(command.formats);
  (void)AtomicFolder(command.out, replaceable_set(command.force));  // fails now rather than after the work
  if (!command.coded_left_out.empty()) {
    context.status->notice("recipe auto leaves the coded cache out: " + command.coded_left_out);
  }
  std::vector<TokenSequence> sequences;
  if (command.with_coded && fit_coded_if_best(command, sequences, context)) return;
  fit_set(command, std::move(sequences), context);
}

}  // namespace

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
