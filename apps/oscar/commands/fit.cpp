// SPDX-License-Identifier: MIT
// oscar fit: opens the input, takes of it what a set needs, or adds up what was taken, and fits the set.
#include "fit/fit.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <set>
#include <utility>

#include "base/atomic_file.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "commands/commands.hpp"
#include "commands/fit_command.hpp"
#include "set/manifest.hpp"
#include "set/set_folder.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

using Clock = std::chrono::steady_clock;

Json layers_of(const RotationPart& part) {
  Json layers = Json::array();
  for (const LayerRotation& layer : part.layers) {
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

Json layers_of(const CodedPart& part) {
  Json layers = Json::array();
  for (const CodedLayer& layer : part.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"key_bits", bits_of(layer.key)},
                      {"value_bits", bits_of(layer.value)},
                      {"key_damage", layer.key.damage},
                      {"value_damage", layer.value.damage}});
  }
  return layers;
}

/// Tells of a part, and for whom it is.
void tell_part(const std::string& part, const std::string& what, const Set& set, Status& status) {
  const std::string names = joined(readers_of_part(set, part));
  status.notice("  " + part + ": " + what + (names.empty() ? "" : ", for " + names));
}

/// Writes the set, and tells people and --json. startup: seconds until the first layer was read.
void finish(const Set& set, double startup, double seconds, const FitCommand& command, const Backend& backend,
            Context& context) {
  const auto fitted = Clock::now();
  write_set(command.out, set, parse_rotation_formats(command.formats), command.force);
  const double writing = seconds_since(fitted);
  Status& status = *context.status;
  Json parts = Json::object();
  if (set.coded) {
    parts[kCodedName] = {
        {"recipe", set.coded->recipe}, {"bits", bits_of(*set.coded)}, {"layers", layers_of(*set.coded)}};
  }
  for (const auto& [name, part] : set.rotations) {
    parts[name] = {{"recipe", part.recipe}, {"layers", layers_of(part)}};
  }
  const std::size_t layers = set.coded ? set.coded->layers.size() : set.rotations.begin()->second.layers.size();
  status.notice(fmt::format("fitted {} on {} in {:.2f} s, {}", plural(static_cast<std::int64_t>(layers), "layer"),
                            plural(set.calibration.tokens, "token"), seconds, backend.description()));
  if (set.coded) tell_part(kCodedName, fmt::format("{:.3f} bits a value", bits_of(*set.coded)), set, status);
  for (const auto& [name, part] : set.rotations) {
    const std::string sample = part.recipe.value("clip_sample", "");
    tell_part(name, part.recipe.value("name", "") + (sample.empty() ? "" : ", clip ratios fitted on " + sample), set,
              status);
  }
  status.notice("wrote " + command.out.string());
  emit_json(context, {{"set", command.out.string()},
                      {"device", backend.description()},
                      {"recipe", set.recipe},
                      {"tokens", set.calibration.tokens},
                      {"sequences", set.calibration.sequences},
                      {"readers", parts_of_readers(set)},
                      {"parts", std::move(parts)},
                      {"seconds", {{"startup", startup}, {"fit", seconds}, {"writing", writing}}}});
}

/// Throws UsageError if a file is where statistics go, unless --force is given and it holds statistics: somebody's
/// weights, or letters, are not replaced.
void require_replaceable_statistics(const FitCommand& command) {
  const std::filesystem::path& file = command.save_stats;
  const std::string option = "--save-stats " + file.string();
  if (!std::filesystem::exists(file)) return;
  if (!command.force) {
    throw UsageError("there is such a file already", option, "name another, or give --force to replace it");
  }
  try {
    if (!std::filesystem::is_regular_file(file)) return;
    if (SafetensorsFile(file).metadata().at("schema") == "oscar.statistics.v1") return;
  } catch (const std::exception&) {  // whatever it is, we did not write it
  }
  throw UsageError("refusing to replace a file that does not hold such statistics", option,
                   "name another file, or remove it yourself");
}

/// Writes statistics, and tells people and --json, there only if no set is made of them.
void save(const Statistics& statistics, const FitCommand& command, double seconds, Context& context) {
  write_statistics(command.save_stats, statistics);
  std::int64_t tokens = 0;
  for (const CalibrationData& part : statistics.data) tokens += part.tokens;
  const std::size_t layers = statistics.layers.size(), parts = statistics.data.size();
  context.status->notice(fmt::format(
      "statistics of {}, {} in {}, {:.2f} s: wrote {}", plural(static_cast<std::int64_t>(layers), "layer"),
      plural(tokens, "token"), plural(static_cast<std::int64_t>(parts), "part"), seconds, command.save_stats.string()));
  if (!command.out.empty()) return;
  emit_json(context, {{"statistics", command.save_stats.string()},
                      {"layers", layers},
                      {"parts", parts},
                      {"tokens", tokens},
                      {"seconds", seconds}});
}

/// Takes what a set needs of data. started: until the first layer was read. With --resume, layers are kept as soon as
/// they are taken, and those that are there already are not taken again.
Statistics take_of_data(const FitCommand& command, double& startup, std::unique_ptr<Backend>& backend,
                        Context& context) {
  Status& status = *context.status;
  // A GPU takes a while to start: meanwhile the input is opened.
  std::future<std::unique_ptr<Backend>> starting = std::async(std::launch::async, [&context] {
    std::unique_ptr<Backend> started = make_backend(context.common.device, *context.status);
    warm_up(*started);
    return started;
  });
  FitInput input(command, context);
  const FitData data = input.data();
  const FitPlan plan = plan_parts(command.fit, data.uncodable.empty());
  if (const auto few = too_few_tokens(data.source, plan)) status.notice(*few);
  backend = starting.get();
  std::optional<PartialFolder> kept;
  const auto open = [&](const Json& record) -> const PartialFolder* {
    if (!command.resume) return nullptr;
    kept.emplace(command.partial_folder(), input.with_fingerprints(record), status);
    input.keep_states(*kept);
    return &*kept;
  };
  input.wait_until_ready();
  startup = seconds_since(context.started);
  return take(data, command.fit, open, *backend, status);
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
  if (!command.save_stats.empty()) require_replaceable_statistics(command);
  // Fails now rather than after the work.
  if (!command.out.empty()) (void)AtomicFolder(command.out, replaceable_set(command.force));
  double startup = 0;
  std::unique_ptr<Backend> backend;
  const auto started = Clock::now();
  Statistics statistics;
  if (command.stats.empty()) {
    statistics = take_of_data(command, startup, backend, context);
  } else {
    statistics = read_statistics(command.stats);
    const std::set<std::string>& given = command.fit.given;
    if (!given.contains("--sink") && !given.contains("--recent")) command.fit.windows = statistics.windows;
  }
  const double taking = seconds_since(started);
  if (!command.save_stats.empty()) save(statistics, command, taking, context);
  if (!command.out.empty()) {
    if (!backend) backend = make_backend(context.common.device, *context.status);
    if (!command.stats.empty()) startup = seconds_since(context.started);
    const Set set = fit(statistics, command.fit, *backend, *context.status);
    finish(set, startup, seconds_since(context.started) - startup, command, *backend, context);
  }
  if (command.resume) PartialFolder::remove(command.partial_folder());
}

}  // namespace

std::filesystem::path FitCommand::partial_folder() const {
  std::filesystem::path folder = save_stats.empty() ? out : save_stats;
  if (!folder.has_filename()) folder = folder.parent_path();  // SET/
  return folder += ".partial";
}

void register_fit(CLI::App& app, Context& context) {
  auto command = std::make_shared<FitCommand>();
  CLI::App* fit = app.add_subcommand("fit", "Fit a set: for each server the part that it reads");
  fit->footer(
      "Examples:\n"
      "  oscar fit --model Qwen3-8B --text calibration.jsonl --out set\n"
      "  oscar fit --model hf://Qwen/Qwen3-8B --out set\n"
      "  oscar fit --dump dump --for sglang,llamacpp --out set");
  fit->add_option("--dump", command->dump, "Folder written by oscar dump or by a server")
      ->type_name("DIR")
      ->group("Input");
  fit->add_option("--stats", command->stats,
                  "Files of --save-stats, or a folder of moments that OSCAR's SGLang kept, "
                  "instead of data: those of parts are added up")
      ->type_name("FILE")
      ->group("Input");
  add_model_input_options(*fit, command->input);
  add_fit_options(*fit, *command);
  add_json_option(*fit, context);
  fit->callback([command, fit, &context] {
    check_usage(*fit, *command);
    run(*command, context);
  });
}

}  // namespace oscar
