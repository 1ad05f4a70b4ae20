// SPDX-License-Identifier: MIT
#include "fit/options.hpp"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <tuple>
#include <utility>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "kernels/arguments.hpp"
#include "method/compose.hpp"

namespace oscar {
namespace {

/// Which target is meant by the name of a server or a library, in the words of an error.
std::string target_of_server(std::string server) {
  std::erase_if(server, [](char c) { return c == '.' || c == '-' || c == '_'; });
  std::ranges::transform(server, server.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (server == "vllm" || server == "transformers" || server == "hf" || server == "huggingface") {
    return "vLLM and transformers read sets of every target by oscar's Python package, so give --target any";
  }
  if (server.starts_with("sglang")) {
    return "SGLang with OSCAR's patches reads --target sglang-v1, newer trees of it sglang-v3";
  }
  if (server.starts_with("llama") || server == "gguf" || server == "ollama") return "llama.cpp reads --target llamacpp";
  return "";
}

void require_one_of(const std::string& value, const char* option, std::initializer_list<const char*> known) {
  const std::vector<std::string> names(known.begin(), known.end());
  if (std::ranges::find(names, value) == names.end()) throw unknown_choice(value, option, names);
}

/// "a,b", or "a" for both.
std::pair<std::string, std::string> both_sides(const std::string& text) {
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos) return {text, text};
  return {text.substr(0, comma), text.substr(comma + 1)};
}

DType scale_dtype_from(const std::string& name) {
  require_one_of(name, "--scale-dtype", {"float32", "float16", "bfloat16"});
  return dtype_from_name(name);
}

/// "layer" or "head", or two of them: whether keys, and values, go head by head.
std::pair<bool, bool> per_head(const std::string& granularity, const char* option) {
  const auto [key, value] = both_sides(granularity);
  for (const std::string& side : {key, value}) require_one_of(side, option, {"layer", "head"});
  return {key == "head", value == "head"};
}

/// Throws if the target lacks what `option` asks for.
void require(bool wanted, bool Target::*ability, const FitOptions& options, const std::string& option,
             const std::string& what) {
  if (!wanted || target_from_name(options.target).*ability) return;
  std::string able;
  for (const Target& target : targets()) {
    if (target.*ability) able += (able.empty() ? "" : " or ") + ("--target " + target.name);
  }
  throw UsageError("target " + options.target + " cannot serve " + what, option, "use " + able);
}

void require_target(const Recipe& recipe, const FitOptions& options) {
  const bool stretched = recipe.kind == Recipe::Kind::kStretch;
  require(stretched, &Target::linear, options, "--recipe " + options.recipe, "transforms that are not rotations");
  require(recipe.key_per_head || recipe.value_per_head, &Target::per_head, options, "--granularity head",
          "one rotation per head");
  require(recipe.center, &Target::mean, options, "--center", "centred keys");
  require(recipe.key_clip_per_head, &Target::key_clips, options, "--clip-granularity head", "key clip ratios per head");
  require(recipe.value_clip_per_head, &Target::value_clips, options, "--clip-granularity head",
          "value clip ratios per head");
  const Grid grid = recipe.codecs.key->grid;
  const std::string codec(name_of(grid));
  require(grid == Grid::kLloydMax, &Target::lloyd_max, options, "--codec " + codec, "codec " + codec);
}

HistoryCodecs codecs_of(const FitOptions& options) {
  const RowCodec codec{.group_size = options.group_size,
                       .grid = grid_from_name(options.codec),
                       .scale_dtype = scale_dtype_from(options.scale_dtype)};
  if (options.clip_granularity != "layer" && options.clip != "auto") {
    throw UsageError("there are no clip ratios to fit per head", "--clip-granularity " + options.clip_granularity,
                     "leave it out, or use --clip auto");
  }
  return {codec, codec};
}

Recipe::Kind kind_of(const std::string& recipe) {
  if (recipe == "hadamard") return Recipe::Kind::kHadamard;
  return recipe == "stretch" ? Recipe::Kind::kStretch : Recipe::Kind::kSpectral;
}

void check_options(const FitOptions& options) {
  (void)target_from_name(options.target);
  require_one_of(options.recipe, "--recipe", {"auto", "oscar", "stretch", "coded", "hadamard"});
  if (options.recipe == "coded") {
    throw UsageError("recipe coded makes a cache of its own, not rotations", "--recipe", "fit it by itself, from data");
  }
  require_one_of(options.key_objective, "--key-objective", {"qqt", "fisher"});
  (void)composition_from_name(options.composition);
  if (!(options.stretch_power > 0 && options.stretch_power <= 1) || !(options.stretch_lambda > 0)) {
    throw UsageError("the power of a stretch lies above 0 and up to 1, its lambda above 0",
                     "--stretch-power, --stretch-lambda", "use for example 1 and 0.01");
  }
}

std::string granularity(bool key_per_head, bool value_per_head) {
  const std::string key = key_per_head ? "head" : "layer", value = value_per_head ? "head" : "layer";
  return key == value ? key : key + "," + value;
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> kTargets{
      {.name = "sglang-v1", .lloyd_max = true},
      {.name = "sglang-v3", .linear = true, .per_head = true, .mean = true, .key_clips = true, .lloyd_max = true},
      {.name = "llamacpp"},
      {.name = "any",
       .linear = true,
       .per_head = true,
       .mean = true,
       .key_clips = true,
       .value_clips = true,
       .lloyd_max = true}};
  return kTargets;
}

const Target& target_from_name(const std::string& name) {
  std::vector<std::string> names;
  for (const Target& target : targets()) {
    if (target.name == name) return target;
    names.push_back(target.name);
  }
  throw unknown_choice(name, "--target", names, target_of_server(name));
}

Recipe resolve_recipe(const FitOptions& options) {
  check_options(options);
  Recipe recipe{.kind = kind_of(options.recipe),
                .name = options.recipe,
                .key_objective = find_moment(options.key_objective).value(),
                .composition = composition_from_name(options.composition),
                .center = options.center,
                .stretch_power = options.stretch_power,
                .stretch_lambda = options.stretch_lambda,
                .windows = options.windows};
  const bool stretched = recipe.kind == Recipe::Kind::kStretch;
  const std::string usual = stretched ? "head,layer" : "layer";
  std::tie(recipe.key_per_head, recipe.value_per_head) =
      per_head(options.granularity.empty() ? usual : options.granularity, "--granularity");
  std::tie(recipe.key_clip_per_head, recipe.value_clip_per_head) =
      per_head(options.clip_granularity, "--clip-granularity");
  recipe.codecs = codecs_of(options);
  require_target(recipe, options);
  return recipe;
}

Json to_json(const Recipe& recipe, const FitOptions& options) {
  Json json{{"name", recipe.name},
            {"target", options.target},
            {"key_objective", recipe.key_name()},
            {"value_objective", recipe.value_name()},
            {"granularity", granularity(recipe.key_per_head, recipe.value_per_head)},
            {"codec", name_of(recipe.codecs.key->grid)},
            {"levels", {recipe.codecs.key->levels, recipe.codecs.value->levels}},
            {"clip", options.clip},
            {"clip_granularity", granularity(recipe.key_clip_per_head, recipe.value_clip_per_head)},
            {"group_size", recipe.codecs.key->group_size},
            {"center", recipe.center}};
  if (recipe.kind == Recipe::Kind::kStretch) {
    json["stretch"] = {{"power", recipe.stretch_power}, {"lambda", recipe.stretch_lambda}};
  }
  return json;
}

}  // namespace oscar
