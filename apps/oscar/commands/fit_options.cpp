// SPDX-License-Identifier: MIT
// The options of "oscar fit" that are its own.
#include <CLI/CLI.hpp>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "commands/fit_command.hpp"
#include "fit/options.hpp"
#include "options.hpp"

namespace oscar {
namespace {

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
      "Coded cache: store keys as attention reads them, or as they were before RoPE: fewer errors, and no dependence "
      "on positions; no kernels read those yet")
      ->type_name("after-rope|before-rope");
  option(details, "--scope", fit.scope, "Coded cache: who shares one budget of bits")->type_name("model|layer|head");
  option(recipe, "--context", fit.context,
         "Coded cache, with --model: the longest text that will be served, over whose positions the calibration is "
         "spread; 0 = the model's context")
      ->check(kNonNegative)
      ->type_name("TOKENS");
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
         "Recipe stretch: 1 = the best linear transform, 0 = a rotation");
  option(details, "--stretch-lambda", fit.stretch_lambda,
         "Recipe stretch: part of the mean eigenvalue added to both moments");
  option(details, "--seed", fit.clip_fit.seed, "Seed of the clip fit's sample")->check(kNonNegative);
  option(more_cache, "--codec", fit.codec, "Rotations: how rows become codes; lloyd-max: OSCAR's option")
      ->type_name("minmax|lloyd-max");
  option(more_cache, "--scale-dtype", fit.scale_dtype, "Rotations: what scales and zeros are stored in")
      ->type_name("float32|float16|bfloat16");
  option(more_cache, "--group-size", fit.group_size, "Rotations: channels per scale and zero point; 0 = the whole head")
      ->check(kNonNegative);
  option(cache, "--sink", fit.windows.sink, "First tokens that stay bfloat16")->check(kNonNegative);
  option(cache, "--recent", fit.windows.recent, "Last tokens that stay bfloat16")->check(kNonNegative);
}

void add_output_options(CLI::App& app, FitCommand& command) {
  writes(app.add_option("--out", command.out, "Folder for the set"))->type_name("DIR")->group("Output");
  writes(app.add_option("--save-stats", command.save_stats,
                        "Write what was taken of the data, or of --stats, to this file"))
      ->type_name("FILE")
      ->group("Output");
  app.add_option("--format", command.formats, "Files of rotations: pt, or pt,h5")
      ->capture_default_str()
      ->group("More output");
  app.add_flag("--force", command.force, "Replace an existing output folder")->group("Output");
  app.add_flag(
         "--resume", command.resume,
         "Keep in OUT.partial (of statistics: FILE.partial) what is taken, and go on with what is there. Of a model "
         "hidden states are kept too, with keys and values that layers share: at most twice "
         "tokens x (hidden size + shared channels) x 4 bytes")
      ->group("Output");
}

}  // namespace

void add_fit_options(CLI::App& app, FitCommand& command) {
  add_recipe_options(app, command);
  add_output_options(app, command);
}

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

}  // namespace oscar
