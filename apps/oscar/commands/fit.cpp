// SPDX-License-Identifier: MIT
// oscar fit: opens the input, takes of it what a set needs, or adds up what was taken, and fits the set.
#include "fit/fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/places.hpp"
#include "base/sha256.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "commands.hpp"
#include "dump/live_source.hpp"
#include "dump/source.hpp"
#include "fit/options.hpp"
#include "fit/take.hpp"
#include "model/run/runner.hpp"
#include "model/tokenizer/tokens.hpp"
#include "model/weights/checkpoint.hpp"
#include "model_input.hpp"
#include "options.hpp"
#include "set/manifest.hpp"
#include "set/set_folder.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

using Clock = std::chrono::steady_clock;

struct FitCommand {
  std::filesystem::path dump, out, save_stats;
  std::vector<std::filesystem::path> stats;
  ModelInput input;
  std::string formats = "pt,h5";
  FitOptions fit;
  bool force = false, resume = false;

  /// Where layers are kept by --resume until the set, or the file of statistics, is written.
  [[nodiscard]] std::filesystem::path partial_folder() const {
    std::filesystem::path folder = save_stats.empty() ? out : save_stats;
    if (!folder.has_filename()) folder = folder.parent_path();  // SET/
    return folder += ".partial";
  }
};

/// A hash of the names, the sizes and 64 pieces of each file of weights, by which other weights under the same
/// configuration show. At a server, versions of files stand for pieces.
std::string fingerprint_of_weights(const std::filesystem::path& model) {
  constexpr std::uint64_t kPieces = 64, kPieceBytes = 4096;
  const std::unique_ptr<const Checkpoint> checkpoint = open_checkpoint(model);
  Sha256 hash;
  for (const auto& [name, file] : checkpoint->files()) {
    const std::span<const std::byte> bytes = file->bytes();
    const std::string text = name + " " + std::to_string(bytes.size()) + " " + file->version();
    hash.update(std::as_bytes(std::span(text)));
    for (std::uint64_t i = 0; !is_remote(model) && i < kPieces; ++i) {
      const std::uint64_t begin = bytes.size() / kPieces * i;
      hash.update(bytes.subspan(begin, std::min(kPieceBytes, bytes.size() - begin)));
    }
  }
  return hash.hex();
}

/// Where Q/K/V come from: a dump, or a model that runs while it is watched (nothing is dumped).
class FitInput {
 public:
  FitInput(const FitCommand& command, const Context& context) : model_(command.input.model), dump_(command.dump) {
    Status& status = *context.status;
    const std::vector<int> layers = parse_layers(command.input.layers);
    const TokenLimits& limits = command.input.limits;
    if (!dump_.empty()) {
      source_ = open_dump(dump_, {limits.max_tokens, limits.max_sequences, layers}, status);
      uncodable_ = why_not_coded(*source_);
      return;
    }
    runner_ = open_input_model(command.input, context);
    sequences_ = read_sequences(command.input, runner_->config(), status);
    uncodable_ = why_not_coded(runner_->config(), layers);
    LiveOptions live_options{.layers = layers};
    if (plan_parts(command.fit, uncodable_.empty()).coded) {
      const int most = runner_->config().max_position_embeddings, asked = command.fit.context;
      if (asked > most) {
        throw UsageError(fmt::format("the model reads {} tokens at most", most), fmt::format("--context {}", asked),
                         "give that, or less");
      }
      context_ = asked > 0 ? asked : most;
      live_options.first_positions = spread_over(context_, sequences_);
    }
    auto live = open_live(*runner_, sequences_, live_options, status);
    for (const int layer : layers) {
      if (std::ranges::count(runner_->config().cache_layers(), layer) > 0) continue;
      throw UsageError(fmt::format("the model has no cache in layer {} that grows with the whole text", layer),
                       "--layers", "leave it out: no server reads a set there");
    }
    live_ = live.get();
    source_ = std::move(live);
  }

  [[nodiscard]] FitData data() { return {*source_, runner_.get(), sequences_, context_, uncodable_}; }
  /// Has a model's hidden states kept beside the layers, and goes on with those there; nothing for a dump.
  void keep_states(const PartialFolder& partial) {
    if (live_ != nullptr) live_->keep_states(partial.path(), [&partial](int layer) { return partial.has(layer); });
  }
  /// Waits until a model's first layer is loaded and a GPU's kernels and memory are there.
  void wait_until_ready() {
    if (live_ != nullptr) live_->wait_until_ready();
  }
  /// Adds fingerprints of the model's weights, or of the dump's layers, to a record of what decides a result.
  [[nodiscard]] Json with_fingerprints(Json record) const {
    if (!model_.empty()) {
      record["weights"] = fingerprint_of_weights(model_);
      const std::string where_and_type = runner_->description();  // "cpu, float32"
      record["model_dtype"] = where_and_type.substr(where_and_type.rfind(' ') + 1);
    }
    if (dump_.empty()) return record;
    Json& layers = record[PartialFolder::kDataOfLayers] = Json::object();
    for (const auto& [id, print] : fingerprint_layers(dump_, source_->layer_ids())) layers[std::to_string(id)] = print;
    return record;
  }

 private:
  std::filesystem::path model_, dump_;
  std::vector<TokenSequence> sequences_;  // what the model reads
  int context_ = 0;                       // over how many positions they are spread
  std::string uncodable_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<QkvSource> source_;
  LiveSource* live_ = nullptr;  // if that is what the source is
};

/// In the order and groups that --help shows.
void add_recipe_options(CLI::App& app, FitCommand& command) {
  FitOptions& fit = command.fit;
  const auto option = [&](const char* group, const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->capture_default_str()->group(group);
  };
  const char *const recipe = "Recipe", *const details = "More about the recipe", *const cache = "Cache",
                    *const more_cache = "More about the cache";
  option(recipe, "--for", fit.readers, "Only for these readers; default: for all")
      ->delimiter(',')
      ->type_name(joined(readers(), ",", &Reader::name));
  option(recipe, "--recipe", fit.recipe,
         "auto gives each reader the part that it reads best; another recipe makes one part")
      ->type_name("auto|coded|oscar|stretch|hadamard");
  option(recipe, "--bits", fit.bits, "Coded cache: bits of one stored value, everything counted, 1.25 to 4")
      ->type_name("B");
  option(
      recipe, "--keys", fit.keys,
      "Coded cache: store keys as they were before RoPE, with fewer errors, where a model's keys turn by their place "
      "alone; or as attention reads them, which decode kernels read 1.2 to 2.1 times as fast")
      ->type_name("before-rope|after-rope");
  option(details, "--scope", fit.scope, "Coded cache: who shares one budget of bits")->type_name("model|layer|head");
  option(recipe, "--context", fit.context,
         "Coded cache, with --model: the longest text that will be served, over whose positions the calibration is "
         "spread; 0 = the model's context")
      ->check(kNonNegative);
  option(recipe, "--clip", fit.clip, "Rotations: auto (fitted per layer), off, or two ratios K,V");
  app.add_flag("--center,!--no-center", fit.center,
               "Recipes oscar, stretch: subtract each head's mean key from every key")
      ->group(details);
  option(details, "--key-objective", fit.key_objective, "Recipes oscar, stretch")->type_name("qqt|fisher");
  option(details, "--composition", fit.composition, "Recipes oscar, stretch: factors from left to right")
      ->type_name("r_h_pbr|plain");
  option(
      details, "--granularity", fit.granularity,
      "Recipes oscar, stretch: one matrix per layer or per head; or two of these, for K,V. Default: layer; head,layer "
      "for stretch");
  option(details, "--clip-granularity", fit.clip_granularity,
         "Rotations: a fitted ratio per layer; or, of keys, per head")
      ->type_name("layer|head");
  option(details, "--stretch-power", fit.stretch_power,
         "Recipe stretch: 1 = the best linear transform; the nearer to 0, the more a rotation");
  option(details, "--stretch-lambda", fit.stretch_lambda,
         "Recipe stretch: part of the mean eigenvalue added to both moments");
  option(details, "--seed", fit.clip_fit.seed, "Seed of the clip fit's sample")->check(kNonNegative);
  option(more_cache, "--codec", fit.codec, "Rotations: how rows become codes; lloyd-max: OSCAR's option")
      ->type_name("minmax|lloyd-max");
  option(more_cache, "--scale-dtype", fit.scale_dtype, "Rotations: what scales and zeros are stored in")
      ->type_name("float32|float16|bfloat16");
  option(more_cache, "--group-size", fit.group_size, "Rotations: channels per scale and zero point; 0 = the whole head")
      ->check(kNonNegative);
  option(cache, "--sink", fit.windows.sink, "First tokens that stay bfloat16")->check(kWindow);
  option(cache, "--recent", fit.windows.recent, "Last tokens that stay bfloat16")->check(kWindow);
}

void add_output_options(CLI::App& app, FitCommand& command) {
  app.option_defaults()->group("Output");
  writes(app.add_option("--out", command.out, "Folder for the set"))->type_name("DIR");
  writes(app.add_option("--save-stats", command.save_stats,
                        "Write what was taken of the data, or of --stats, to this file"))
      ->type_name("FILE");
  app.add_option("--format", command.formats, "Files of rotations: pt, h5 or pt,h5; SGLang reads pt")
      ->capture_default_str()
      ->group("More output");
  app.add_flag("--force", command.force, "Replace an existing output folder");
  app.add_flag(
      "--resume", command.resume,
      "Keep in OUT.partial (of statistics: FILE.partial) what is taken, and go on with what is there. Of a model "
      "hidden states are kept too, with keys and values that layers share: at most twice "
      "tokens x (hidden size + shared channels) x 4 bytes");
}

/// The options that are fit's own; those of its input are added before.
void add_fit_options(CLI::App& app, FitCommand& command) {
  add_recipe_options(app, command);
  add_output_options(app, command);
}

/// After parsing: throws UsageError for inputs and outputs that do not go together, and for options that do not.
void check_usage(const CLI::App& app, FitCommand& command) {
  for (const CLI::Option* option : app.get_options()) {
    if (is_given(*option)) command.fit.given.insert(option->get_name());
  }
  (void)plan_parts(command.fit);
  const bool dump = !command.dump.empty(), model = !command.input.model.empty(), stats = !command.stats.empty();
  if (stats) {
    refuse_given(app,
                 {"--dump", "--model", "--text", "--tokens", "--max-tokens", "--sequences", "--seq-len", "--layers",
                  "--model-dtype", "--context", "--keys", "--seed"},
                 "statistics say all that a set depends on but its recipe and its bits");
    refuse_given(app, {"--resume"}, "statistics are added up at once, with nothing to go on with");
  } else if (dump == model) {
    throw UsageError(dump ? "--dump and --model exclude each other" : "nothing to fit on", "oscar fit",
                     "give --dump DIR, or --model DIR with --text or --tokens, or --stats FILE");
  }
  if (dump) {
    refuse_given(app, {"--text", "--tokens", "--seq-len", "--model-dtype"},
                 "that is for a model, and a dump has its own sequences and numbers");
    refuse_given(app, {"--context"}, "a dump's keys are taken at the positions where they are");
  }
  // Jobs that take statistics may be given what the job that merges them makes of them.
  if (!command.out.empty() || !command.save_stats.empty()) return;
  throw UsageError("no folder for the set", "oscar fit", "give --out DIR, or --save-stats FILE");
}

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
  const RotationFormats formats = parse_rotation_formats(command.formats);
  write_set(command.out, set, formats, command.force);
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
  status.notice(fmt::format("fitted {} on {} in {:.2f} s, {}", plural(layers, "layer"),
                            plural(set.calibration.tokens, "token"), seconds, backend.description()));
  if (set.coded) tell_part(kCodedName, fmt::format("{:.3f} bits a value", bits_of(*set.coded)), set, status);
  for (const auto& [name, part] : set.rotations) {
    const std::string sample = part.recipe.value("clip_sample", "");
    tell_part(name, part.recipe.value("name", "") + (sample.empty() ? "" : ", clip ratios fitted on " + sample), set,
              status);
  }
  status.notice("wrote " + command.out.string());
  const auto readers = parts_of_readers(set);
  if (!formats.pt && (readers.contains("sglang") || readers.contains("sglang-v1"))) {
    status.notice("SGLang reads .pt files, which this set lacks: oscar convert SET NEW --format pt,h5 adds them");
  }
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
/// weights, or letters, are not replaced. Throws where they cannot be written, before the work.
void require_replaceable_statistics(const FitCommand& command) {
  const std::filesystem::path& file = command.save_stats;
  const std::string option = "--save-stats " + file.string();
  if (!file.has_filename() || std::filesystem::is_directory(file)) {
    throw UsageError("a file is written, not a folder", option, "name a file in it");
  }
  if (!std::filesystem::exists(file)) return require_writable(file);
  if (!command.force) {
    throw UsageError("there is such a file already", option, "name another, or give --force to replace it");
  }
  bool ours = !std::filesystem::is_regular_file(file);  // a device, or a pipe
  try {
    ours = ours || SafetensorsFile(file).metadata().at("schema") == "oscar.statistics.v1";
  } catch (const std::exception&) {  // whatever it is, we did not write it
  }
  if (ours) return require_writable(file);
  throw UsageError("refusing to replace a file that does not hold such statistics", option,
                   "name another file, or remove it yourself");
}

/// Writes statistics, and tells people and --json, there only if no set is made of them.
void save(const Statistics& statistics, const FitCommand& command, double seconds, Context& context) {
  require_all_heads(statistics.heads);  // the file does not say which it has
  write_statistics(command.save_stats, statistics);
  std::int64_t tokens = 0;
  for (const CalibrationData& part : statistics.data) tokens += part.tokens;
  const std::size_t layers = statistics.layers.size(), parts = statistics.data.size();
  context.status->notice(fmt::format("statistics of {}, {} in {}, {:.2f} s: wrote {}", plural(layers, "layer"),
                                     plural(tokens, "token"), plural(parts, "part"), seconds,
                                     command.save_stats.string()));
  if (!command.out.empty()) return;
  emit_json(context, {{"statistics", command.save_stats.string()},
                      {"layers", layers},
                      {"parts", parts},
                      {"tokens", tokens},
                      {"seconds", seconds}});
}

void tell_of_missing_layers(const ModelIdentity& model, const std::vector<int>& layers, Status& status) {
  if (const auto few = too_few_layers(model, layers)) status.notice(*few);
}

/// Takes what a set needs of data. started: until the first layer was read. With --resume, layers are kept as soon as
/// they are taken, and those that are there already are not taken again.
Statistics take_of_data(const FitCommand& command, std::optional<PartialFolder>& kept, double& startup,
                        std::unique_ptr<Backend>& backend, Context& context) {
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
  if (!command.out.empty()) tell_of_missing_layers(data.source.model(), data.source.layer_ids(), status);
  backend = starting.get();
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
  std::optional<PartialFolder> kept;
  Statistics statistics;
  if (command.stats.empty()) {
    statistics = take_of_data(command, kept, startup, backend, context);
  } else {
    statistics = read_statistics(command.stats);
    const std::set<std::string>& given = command.fit.given;
    if (!given.contains("--sink")) command.fit.windows.sink = statistics.windows.sink;
    if (!given.contains("--recent")) command.fit.windows.recent = statistics.windows.recent;
    std::vector<int> layers;
    for (const LayerStatistics& layer : statistics.layers) layers.push_back(layer.layer_id);
    if (!command.out.empty()) tell_of_missing_layers(statistics.model, layers, *context.status);
  }
  const double taking = seconds_since(started);
  if (!command.save_stats.empty()) save(statistics, command, taking, context);
  if (!command.out.empty()) {
    if (!backend) backend = make_backend(context.common.device, *context.status);
    if (!command.stats.empty()) startup = seconds_since(context.started);
    const Set set = fit(statistics, command.fit, *backend, *context.status);
    finish(set, startup, seconds_since(context.started) - startup, command, *backend, context);
  }
  if (kept) kept->remove();
}

}  // namespace

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
