// SPDX-License-Identifier: MIT
// How people ask for a set, and what is made of that: a part for each reader, by a recipe that this reader can read.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.hpp"
#include "method/coded_levels.hpp"
#include "method/solve.hpp"
#include "moments/sample.hpp"
#include "set/set.hpp"

namespace oscar {

struct FitOptions {
  /// auto: for each reader the part that it reads best. coded: the coded cache. oscar: rotations by the objectives and
  /// composition below. stretch: the best linear transform of keys. hadamard: no data but the clip fit.
  std::string recipe = "auto";
  /// For whom: names of readers (set/set.hpp). Empty: for all.
  std::vector<std::string> readers;
  /// Recipes oscar and stretch: qqt or fisher.
  std::string key_objective = "qqt";
  /// Recipes oscar and stretch: r_h_pbr or plain, see method/compose.hpp.
  std::string composition = "r_h_pbr";
  /// Recipes oscar and stretch: layer: one matrix per layer; head: one per KV head; or two of these, for keys and
  /// values. Empty: layer, and head,layer for recipe stretch.
  std::string granularity;
  /// Recipes oscar and stretch: subtract the mean key of each head from every key.
  bool center = false;
  /// Recipe stretch: see method/solve.hpp.
  double stretch_power = 1, stretch_lambda = 1e-2;
  // All rotations.
  /// How rows become codes: minmax, as servers do; or lloyd-max, OSCAR's published option.
  std::string codec = "minmax";
  /// What scales and zeros are stored in: float32, float16 or bfloat16.
  std::string scale_dtype = "float32";
  /// "auto": fitted per layer; "off"; or "K,V", two ratios.
  std::string clip = "auto";
  /// layer: one fitted ratio per layer; head: of keys, one per KV head.
  std::string clip_granularity = "layer";
  /// Channels per (scale, zero) pair; 0 = the whole head.
  int group_size = 0;
  SampleOptions clip_fit;
  // The coded cache.
  /// Bits of one stored value, everything counted.
  double bits = 2.25;
  /// How keys are stored: after-rope, as attention reads them; before-rope, as they were before they were turned, where
  /// a model tells how, else after-rope.
  std::string keys = "before-rope";
  /// Who shares one budget: model, layer or head.
  std::string scope = "model";
  /// Of a model: the longest text that will be served, over whose positions its texts are spread; 0: what it can read.
  int context = 0;
  Windows windows;
  /// Names of options ("--bits") that somebody gave, though perhaps with the usual value: something must take them.
  std::set<std::string> given;
};

/// The parts that a fit makes.
struct FitPlan {
  bool coded = false;
  std::map<std::string, Recipe> rotations;  // by the names of parts

  /// Returns the moments that must be known before anything is solved.
  [[nodiscard]] std::set<Moment> moments() const;
  /// Throws UsageError if groups of channels do not divide the rows of a layer.
  void require_groups(int key_dim, int value_dim) const;
};

/// Checks the options and makes a plan of them. codable: whether the coded cache takes the model's heads; where it does
/// not, recipe auto makes no such part unless its readers are named. Throws UsageError: options that do not exist or do
/// not fit together, or readers that cannot read what would be made for them.
[[nodiscard]] FitPlan plan_parts(const FitOptions& options, bool codable = true);

/// Returns the fixed clip ratios of keys and values that FitOptions::clip names, 0 for no clipping; none if they are to
/// be fitted. Throws UsageError.
[[nodiscard]] std::optional<std::pair<double, double>> parse_clip(const std::string& text);

/// Returns the recipe with every option, for the manifest.
[[nodiscard]] Json to_json(const Recipe& recipe, const FitOptions& options);

}  // namespace oscar
