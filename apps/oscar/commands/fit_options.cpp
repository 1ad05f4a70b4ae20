// SPDX-License-Identifier: MIT
// The options of "oscar fit" that are its own.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include <CLI/CLI.hpp>

#include "base/errors.hpp"
#include "commands/fit_command.hpp"
#include "fit/coded_fit.hpp"
#include "fit/options.hpp"
#include "options.hpp"

namespace oscar {
namespace {

std::string target_names() {
  std::string names;
  for (const Target& target : targets()) names += (names.empty() ? "" : "|") + target.name;
  return names;
}

/// In the order and groups that --help shows.
void add_recipe_options(CLI::App& app, FitCommand& command) {
  FitOptions& fit = command.fit;
  const auto option = [&](const char* group, const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->capture_default_str()->group(group);
  };
  const char *const recipe = "Recipe", *const details = "More about the recipe", *const cache = "Cache",
                    *const more_cache = "More about the cache";
  option(recipe, "--target", fit.target, "What must be able to serve the set")->type_name(target_names());
  option(
      recipe, "--recipe", fit.recipe,
      "auto tries what the target can serve; oscar is the paper's, and taken where its options are given or there is "
      "too little data to hold some out")
      ->type_name("auto|oscar|stretch|coded|hadamard");
  option(recipe, "--bits", fit.bits,
         "Recipe coded, which auto for any takes if this is given: bits of one stored value, everything counted, 1.25 "
         "to 4; 0 = 2.25")
      ->type_name("B");
  app.add_flag("--no-coded", command.no_coded,
               "Recipe auto leaves the coded cache out, which it fits where --target is any or oscar")
      ->group(details);
  option(details, "--scope", fit.scope, "Recipe coded: who shares one budget of bits")->type_name("model|layer|head");
  option(recipe, "--context", command.context,
         "Recipe coded, with --model: the longest text that will be served, over whose positions the calibration is "
         "spread; 0 = the model's context")
      ->check(kNonNegative)
      ->type_name("TOKENS");
  option(recipe, "--clip", fit.clip, "auto (fitted per layer), off, or two ratios K,V");
  app.add_flag("--center,!--no-center", fit.center, "Subtract each head's mean key from every key")->group(recipe);
  option(details, "--key-objective", fit.key_objective, "Recipes oscar, stretch")->type_name("qqt|fisher");
  option(details, "--composition", fit.composition, "Factors from left to right")->type_name("r_h_pbr|plain");
  option(details, "--granularity", fit.granularity,
         "One matrix per layer or per head; or two of these, for K,V. Default: layer; head,layer for stretch");
  option(details, "--clip-granularity", fit.clip_granularity,
         "A fitted ratio per layer or per head; or two of these, for K,V");
  option(details, "--stretch-power", fit.stretch_power,
         "Recipe stretch: 1 = the best linear transform, 0 = a rotation");
  option(details, "--stretch-lambda", fit.stretch_lambda,
         "Recipe stretch: part of the mean eigenvalue added to both moments");
  option(details, "--seed", fit.clip_fit.seed, "Seed of the clip fit's sample");
  option(more_cache, "--codec", fit.codec, "How rows become codes; lloyd-max: OSCAR's option")
      ->type_name("minmax|lloyd-max");
  option(more_cache, "--scale-dtype", fit.scale_dtype, "What scales and zeros are stored in")
      ->type_name("float32|float16|bfloat16");
  option(more_cache, "--group-size", fit.group_size, "Channels per scale and zero point; 0 = the whole head")
      ->check(kNonNegative);
  option(cache, "--sink", fit.windows.sink, "First tokens that stay bfloat16")->check(kNonNegative);
  option(cache, "--recent", fit.windows.recent, "Last tokens that stay bfloat16")->check(kNonNegative);
}

void add_output_options(CLI::App& app, FitCommand& command) {
  writes(app.add_option("--out", command.out, "Folder for the rotation set"))->type_name("DIR")->group("Output");
  writes(
      app.add_option("--save-stats", command.save_stats, "Write the sums over the data, or over --stats, to this file"))
      ->type_name("FILE")
      ->group("Output");
  app.add_option("--format", command.formats, "Files to write: pt, h5, safetensors")
      ->capture_default_str()
      ->group("More output");
  app.add_flag("--force", command.force, "Replace an existing output folder")->group("Output");
  app.add_flag(
         "--resume", command.resume,
         "Keep in OUT.partial (of statistics: FILE.partial) what is fitted, and go on with what is there. Of a model "
         "hidden states are kept too, with keys and values that layers share: at most twice "
         "tokens x (hidden size + shared channels) x 4 bytes")
      ->group("Output");
}

/// The first of these options that is given; null: none.
const char* first_given(const CLI::App& app, std::initializer_list<const char*> names) {
  const auto* const found = std::ranges::find_if(names, [&](const char* name) { return app.count(name) > 0; });
  return found == names.end() ? nullptr : *found;
}

/// An option that is given and says nothing about the coded cache; null: none.
const char* rotation_option(const CLI::App& app) {
  return first_given(
      app, {"--clip", "--center", "--key-objective", "--composition", "--granularity", "--clip-granularity",
            "--stretch-power", "--stretch-lambda", "--seed", "--codec", "--scale-dtype", "--group-size", "--format"});
}

void settle_bits(FitOptions& fit) {
  constexpr double kLeast = 1.25, kMost = 4;
  (void)coded_scope_from_name(fit.scope);  // told before anything is opened
  if (fit.bits == 0) fit.bits = 2.25;
  if (fit.bits >= kLeast && fit.bits <= kMost) return;
  throw UsageError(fmt::format("{} bits a value are outside {} to {}", fit.bits, kLeast, kMost), "--bits",
                   "give the bits of one stored value, everything counted");
}

void settle_coded(const CLI::App& app, FitOptions& fit) {
  const auto refuse = [](const char* option, const std::string& what) {
    if (option != nullptr) throw UsageError("recipe coded " + what, option, "leave it out, or fit another recipe");
  };
  const bool stats = app.count("--stats") > 0;
  refuse(rotation_option(app), "does not have this option");
  refuse(stats ? first_given(app, {"--dump", "--model", "--text", "--tokens", "--max-tokens", "--sequences",
                                   "--seq-len", "--layers", "--context", "--sink", "--recent"})
               : nullptr,
         "needs nothing beside its statistics, which say all that their set depends on but its bits");
  if (app.count("--target") == 0) fit.target = "oscar";
  const bool readable = fit.target == "oscar" || fit.target == "any";
  refuse(readable ? nullptr : "--target", "makes a cache of its own, which only oscar and any read");
  refuse(app.count("--dump") > 0 ? first_given(app, {"--context"}) : nullptr,
         "takes a dump's keys from the positions where they are");
  refuse(stats ? first_given(app, {"--resume"}) : nullptr, "adds statistics up at once, with nothing to go on with");
  settle_bits(fit);
}

/// Recipe auto: whether the coded cache competes. It does where our own readers serve the set, unless an option asks
/// for something that it does not have.
void settle_kinds(const CLI::App& app, FitCommand& command) {
  FitOptions& fit = command.fit;
  if (fit.recipe != "auto" || (fit.target != "oscar" && fit.target != "any")) return;
  if (fit.target == "oscar") fit.target = "any";
  if (command.no_coded) return;
  const char* other = first_given(app, {"--layers", "--resume", "--save-stats", "--stats"});
  if (other == nullptr) other = rotation_option(app);
  command.with_coded = other == nullptr;
  if (!command.with_coded) {
    command.coded_left_out = std::string(other) + " is not for it";
    return;
  }
  if (app.count("--bits") > 0) fit.recipe = "coded";  // other caches have no choice of bits
  settle_bits(fit);
}

}  // namespace

void add_fit_options(CLI::App& app, FitCommand& command) {
  add_recipe_options(app, command);
  add_output_options(app, command);
}

void settle_recipe(const CLI::App& app, FitCommand& command) {
  FitOptions& fit = command.fit;
  if (command.no_coded && fit.recipe != "auto") {
    throw UsageError("only recipe auto chooses among kinds of caches", "--no-coded", "leave it out");
  }
  if (fit.recipe == "coded") return settle_coded(app, fit);
  settle_kinds(app, command);
  if (fit.recipe == "coded") return;
  (void)target_from_name(fit.target);  // told before anything is opened
  const char* const of_coded = first_given(app, {"--bits", "--scope", "--context"});
  if (of_coded != nullptr && !command.with_coded) {
    throw UsageError("only recipe coded spends bits", of_coded, "add --recipe coded, or leave it out");
  }
  if (app.count("--recipe") > 0) return;
  if (const char* const of_stretch = first_given(app, {"--stretch-power", "--stretch-lambda"})) {
    throw UsageError("which recipe?", of_stretch, "name the recipe that it belongs to: --recipe stretch");
  }
  const bool own = first_given(app, {"--key-objective", "--composition"}) != nullptr || fit.center;
  if (own) fit.recipe = "oscar";  // none of these goes with the coded cache
  command.recipe_by_default = !own;
}

}  // namespace oscar
