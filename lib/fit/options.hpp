// SPDX-License-Identifier: MIT
// How people ask for a recipe, and what must be able to serve the result: a recipe is refused for a target that lacks
// what it needs.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "method/solve.hpp"
#include "moments/sample.hpp"

namespace oscar {

struct Target {
  std::string name;
  bool linear = false;                          // a read side that is not the inverse of a rotation
  bool per_head = false;                        // one matrix per KV head
  bool mean = false;                            // a mean key
  bool key_clips = false, value_clips = false;  // a clip ratio per KV head
  bool lloyd_max = false;                       // codec lloyd-max
};
/// Returns sglang-v1, sglang-v3, llamacpp and any.
[[nodiscard]] const std::vector<Target>& targets();
/// Throws UsageError that lists the names.
[[nodiscard]] const Target& target_from_name(const std::string& name);

struct FitOptions {
  /// oscar: rotations by the objectives and composition below. stretch: the best linear
  /// transform of keys. hadamard: no data but the clip fit. auto: the best that the target can serve.
  std::string recipe = "oscar";
  /// qqt or fisher. For recipes oscar and stretch.
  std::string key_objective = "qqt";
  /// r_h_pbr or plain, see method/compose.hpp.
  std::string composition = "r_h_pbr";
  /// layer: one matrix per layer; head: one per KV head; or two of these, for keys and values. Empty: layer, and
  /// head,layer for recipe stretch.
  std::string granularity;
  /// What must be able to use the result: see targets().
  std::string target = "sglang-v1";
  /// How rows become codes: minmax, as servers do; or lloyd-max, OSCAR's published option.
  std::string codec = "minmax";
  /// What scales and zeros are stored in: float32, float16 or bfloat16.
  std::string scale_dtype = "float32";
  /// "auto": fitted per layer; "off"; or "K,V", two ratios.
  std::string clip = "auto";
  /// layer: one fitted ratio per layer; head: one per KV head; or two of these, for keys and values.
  std::string clip_granularity = "layer";
  /// Channels per (scale, zero) pair; 0 = the whole head.
  int group_size = 0;
  /// Subtract the mean key of each head from every key.
  bool center = false;
  /// Recipe coded: bits of one stored value, everything counted (0: 2.25), and who shares one budget: model, layer or
  /// head.
  double bits = 0;
  std::string scope = "model";
  /// Recipe stretch: see method/stretch.hpp.
  double stretch_power = 1, stretch_lambda = 1e-2;
  Windows windows;
  SampleOptions clip_fit;
};

/// Checks the options and resolves them. Throws UsageError: options that do not exist, do not fit together, or that the
/// target cannot serve.
[[nodiscard]] Recipe resolve_recipe(const FitOptions& options);
/// Returns the recipe with every option, for the manifest.
[[nodiscard]] Json to_json(const Recipe& recipe, const FitOptions& options);

}  // namespace oscar
