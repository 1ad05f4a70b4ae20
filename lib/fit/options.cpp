// SPDX-License-Identifier: MIT
#include "fit/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <ranges>
#include <tuple>
#include <utility>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "kernels/arguments.hpp"
#include "method/compose.hpp"

namespace oscar {
namespace {

void require_one_of(const std::string& value, const char* option, std::initializer_list<const char*> known) {
  const std::vector<std::string> names(known.begin(), known.end());
  if (std::ranges::find(names, value) == names.end()) throw unknown_choice(value, option, names);
}

DType scale_dtype_from(const std::string& name) {
  require_one_of(name, "--scale-dtype", {"float32", "float16", "bfloat16"});
  return dtype_from_name(name);
}

/// "layer" or "head", or two of them, "K,V": whether keys, and values, go head by head.
std::pair<bool, bool> per_head(const std::string& granularity) {
  const std::size_t comma = granularity.find(',');
  const std::string key = granularity.substr(0, comma);
  const std::string value = comma == std::string::npos ? key : granularity.substr(comma + 1);
  for (const std::string& side : {key, value}) require_one_of(side, "--granularity", {"layer", "head"});
  return {key == "head", value == "head"};
}

HistoryCodecs codecs_of(const FitOptions& options) {
  const RowCodec codec{.group_size = options.group_size,
                       .grid = grid_from_name(options.codec),
                       .scale_dtype = scale_dtype_from(options.scale_dtype)};
  const auto clips = parse_clip(options.clip);
  const bool unclipped = clips && (clips->first == 0 || clips->second == 0);
  if (codec.grid == Grid::kLloydMax && (options.group_size > 0 || unclipped)) {
    throw UsageError("servers read lloyd-max of whole clipped heads alone", "--codec lloyd-max",
                     "leave --group-size out, and --clip off or a ratio of 0");
  }
  require_one_of(options.clip_granularity, "--clip-granularity", {"layer", "head"});
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
  require_one_of(options.recipe, "--recipe", {"auto", "oscar", "stretch", "coded", "hadamard"});
  require_one_of(options.key_objective, "--key-objective", {"qqt", "fisher"});
  (void)composition_from_name(options.composition);
  if (!(options.stretch_power > 0 && options.stretch_power <= 1) || !(options.stretch_lambda > 0)) {
    throw UsageError("the power of a stretch lies above 0 and up to 1, its lambda above 0",
                     "--stretch-power, --stretch-lambda", "use for example 1 and 0.01");
  }
  constexpr double kLeastBits = 1.25, kMostBits = 4;  // more or less is not worth while
  (void)coded_scope_from_name(options.scope);
  require_one_of(options.keys, "--keys", {"after-rope", "before-rope"});
  if (options.bits >= kLeastBits && options.bits <= kMostBits) return;
  throw UsageError(fmt::format("{} bits a value are outside {} to {}", options.bits, kLeastBits, kMostBits), "--bits",
                   "give the bits of one stored value, everything counted");
}

/// Throws UsageError for an option that is given although the recipe, or no part of the set, has it.
void require_takers(const FitOptions& o, bool coded, bool rotated) {
  const auto require = [&](bool has, const char* remedy, std::initializer_list<const char*> options) {
    const auto* const found = std::ranges::find_if(options, [&](const char* each) { return o.given.contains(each); });
    if (has || found == options.end()) return;
    throw UsageError("recipe " + o.recipe + " does not take this option with these readers and options", *found,
                     remedy);
  };
  const bool stretched = o.recipe == "stretch";
  require(stretched || o.recipe == "oscar", "leave it out, or give --recipe oscar or --recipe stretch",
          {"--key-objective", "--composition", "--granularity", "--center"});
  require(stretched, "leave it out, or give --recipe stretch", {"--stretch-power", "--stretch-lambda"});
  require(coded, "only the coded cache takes it: leave it out, or give --recipe coded or auto for vllm or transformers",
          {"--bits", "--scope", "--context", "--keys"});
  require(rotated, "only rotations have it: leave it out, or give another recipe or more readers",
          {"--codec", "--scale-dtype", "--clip", "--clip-granularity", "--group-size", "--format"});
  require(rotated && o.clip == "auto", "only clip ratios that are fitted draw rows: leave it out, or give --clip auto",
          {"--seed"});
}

/// What a reader cannot read of a part, and the option that asks for it; empty: it reads all. recipe: null for the
/// coded cache.
std::pair<std::string, std::string> beyond(const Reader& reader, const FitOptions& options, const Recipe* recipe) {
  if (recipe == nullptr) return {reader.coded ? "" : "the coded cache", "--recipe coded"};
  if (reader.coded) return {"rotations", "--recipe " + options.recipe};
  if (!reader.newer) {
    if (recipe->kind == Recipe::Kind::kStretch) return {"transforms that are not rotations", "--recipe stretch"};
    if (recipe->key_per_head || recipe->value_per_head) return {"one rotation per head", "--granularity head"};
    if (recipe->center) return {"centred keys", "--center"};
    if (recipe->key_clip_per_head) return {"clip ratios per head", "--clip-granularity head"};
  }
  const bool lloyd_max = recipe->codecs.key->grid == Grid::kLloydMax;
  return {lloyd_max && !reader.lloyd_max ? "codec lloyd-max" : "", "--codec lloyd-max"};
}

/// Throws UsageError unless each of these readers of a part that somebody named, or one where nobody is named, can read
/// it.
void require_readers(const std::vector<const Reader*>& asked, const FitOptions& options, const Recipe* recipe) {
  const bool named = !options.readers.empty();
  const auto can = [&](const Reader& reader) { return beyond(reader, options, recipe).first.empty(); };
  const auto unable = std::ranges::find_if(asked, [&](const Reader* reader) { return !can(*reader); });
  const bool one = std::ranges::any_of(asked, [&](const Reader* reader) { return can(*reader); });
  if (unable == asked.end() || (one && !named)) return;
  const std::string able = joined(readers() | std::views::filter(can), ",", &Reader::name);
  const auto [what, option] = beyond(**unable, options, recipe);
  throw UsageError((*unable)->name + " cannot read " + what, option + ", --for",
                   "leave that out, or give readers that can: --for " + able);
}

/// The recipe of rotations that options name, whoever can read them.
Recipe resolve_recipe(const FitOptions& options) {
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
      per_head(options.granularity.empty() ? usual : options.granularity);
  recipe.key_clip_per_head = options.clip_granularity == "head";
  recipe.codecs = codecs_of(options);
  return recipe;
}

std::string granularity(bool key_per_head, bool value_per_head) {
  const std::string key = key_per_head ? "head" : "layer", value = value_per_head ? "head" : "layer";
  return key == value ? key : key + "," + value;
}

}  // namespace

std::set<Moment> FitPlan::moments() const {
  std::set<Moment> all;
  if (coded) all = {Moment::kFisher, Moment::kQqt, Moment::kVtv};
  for (const auto& [name, recipe] : rotations) all.merge(recipe.moments());
  return all;
}

void FitPlan::require_groups(int key_dim, int value_dim) const {
  for (const auto& [name, recipe] : rotations) {
    (void)checked_group_size(*recipe.codecs.key, key_dim);
    (void)checked_group_size(*recipe.codecs.value, value_dim);
  }
}

std::optional<std::pair<double, double>> parse_clip(const std::string& text) {
  if (text == "auto") return std::nullopt;
  if (text == "off") return std::pair(0.0, 0.0);
  const std::size_t comma = std::min(text.find(','), text.size() - 1);
  const auto key = parse_number<double>(text.substr(0, comma)), value = parse_number<double>(text.substr(comma + 1));
  if (key && value && *key <= 1 && *value <= 1) return std::pair(*key, *value);
  throw UsageError("cannot read the clip ratios \"" + text + "\"", "--clip",
                   "use auto, off, or two ratios from 0 to 1 like 0.96,0.92");
}

FitPlan plan_parts(const FitOptions& options, bool codable) {
  check_options(options);
  FitPlan plan;
  std::map<std::string, std::vector<const Reader*>> asked;  // by part
  std::vector<const Reader*> all;
  for (const std::string& name : options.readers.empty() ? reader_names() : options.readers) {
    all.push_back(&reader_from_name(name, "--for"));
  }
  if (options.recipe == "auto") {
    for (const Reader* reader : all) {
      if (reader->coded && !codable && options.readers.empty()) continue;
      asked[reader->coded ? kCodedName : reader->newer ? kWithMeansName : kRotationsName].push_back(reader);
    }
  } else {
    asked[options.recipe == "coded" ? kCodedName : options.center ? kWithMeansName : kRotationsName] = all;
  }
  for (const auto& [part, of] : asked) {
    if (part == kCodedName) {
      plan.coded = true;
      require_readers(of, options, nullptr);
      continue;
    }
    FitOptions own = options;
    if (options.recipe == "auto") {
      const bool means = part == kWithMeansName;
      own.recipe = means ? "stretch" : "oscar", own.key_objective = means ? "fisher" : "qqt", own.center = means;
    }
    const Recipe& recipe = plan.rotations.emplace(part, resolve_recipe(own)).first->second;
    require_readers(of, options, &recipe);
  }
  require_takers(options, plan.coded, !plan.rotations.empty());
  return plan;
}

Json to_json(const Recipe& recipe, const FitOptions& options) {
  Json json{{"name", recipe.name},
            {"key_objective", recipe.key_name()},
            {"value_objective", recipe.value_name()},
            {"granularity", granularity(recipe.key_per_head, recipe.value_per_head)},
            {"codec", name_of(recipe.codecs.key->grid)},
            {"levels", {recipe.codecs.key->levels, recipe.codecs.value->levels}},
            {"clip", options.clip},
            {"clip_granularity", options.clip_granularity},
            {"group_size", recipe.codecs.key->group_size},
            {"center", recipe.center}};
  if (recipe.kind == Recipe::Kind::kStretch) {
    json["stretch"] = {{"power", recipe.stretch_power}, {"lambda", recipe.stretch_lambda}};
  }
  return json;
}

}  // namespace oscar
