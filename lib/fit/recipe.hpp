// SPDX-License-Identifier: MIT
// What a fit is to do, as people ask for it and as it is carried out. Targets limit it: what a server cannot read is
// refused here, before any data is touched.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "fit/clip_fit.hpp"
#include "fit/refine.hpp"
#include "kernels/mixed_sequence.hpp"

namespace oscar {

struct FitOptions {
  /// oscar: rotations by the objectives and composition below. lsq: that with codec lsq. stretch: the best linear
  /// transform of keys. ktk_vtv: plain key and value moments. hadamard: no data but the clip fit. uresidual:
  /// eigenvectors of the residual moment aligned to those of the covariance. auto: the best that the target can serve.
  std::string recipe = "oscar";
  /// qqt, ktk or fisher; value objective: sst, oto, vtv or output. For recipes oscar, lsq and stretch.
  std::string key_objective = "qqt";
  std::string value_objective = "sst";
  /// See transform/compose.hpp.
  std::string composition = "r_h_pbr";
  /// layer: one matrix per layer; head: one per KV head; or two of these, for keys and values. Empty: layer, and
  /// head,layer for recipe stretch.
  std::string granularity;
  /// What must be able to use the result: see targets().
  std::string target = "sglang-v1";
  /// How rows become codes: minmax, as servers do; lsq (unbiased; takes no clip ratio); or lloyd-max, OSCAR's published
  /// option. Empty: minmax, and lsq where the recipe and the target allow it (recipes lsq and stretch).
  std::string codec;
  /// What scales and zeros are stored in: float32, float16 or bfloat16.
  std::string scale_dtype = "float32";
  /// Levels of keys and of values; empty: 4,4 = 2 bits each, and for recipe auto all that take the same bytes.
  std::string levels;
  /// "auto": fitted per layer; "off"; or "K,V", two ratios. For codecs minmax and lloyd-max.
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
  /// Recipe stretch: see transform/stretch.hpp.
  double stretch_power = 1, stretch_lambda = 1e-2;
  /// Turn the basis of keys by descent on the softmax KL, see fit/refine.hpp. Recipe auto tries it by itself.
  bool refine = false;
  Windows windows;
  ClipFitOptions clip_fit;
  RefineOptions refining;
  /// Folder (or rotation set) with the reference k_rotation and v_rotation of recipe uresidual.
  std::filesystem::path reference_rotation;
};

/// Options, checked and resolved once per fit: lsq and ktk_vtv are oscar with other settings.
struct Recipe {
  enum class Kind { kSpectral, kHadamard, kResidual, kStretch } kind = Kind::kSpectral;
  std::string name;
  std::string key_objective, value_objective;  // qqt | ktk | fisher, sst | oto | vtv | output
  std::string composition;
  bool key_per_head = false, value_per_head = false;
  bool key_clip_per_head = false, value_clip_per_head = false;
  bool center = false, refine = false;
  double stretch_power = 1, stretch_lambda = 1e-2;
  HistoryCodecs codecs;  // both are set; clip ratios are fitted or fixed elsewhere
  Windows windows;

  /// "<objective>_<composition>", "hadamard" or "uresidual"; keys: with "stretch_" and "refined_" before it, values:
  /// with "stretch_" if they are stretched.
  /// Objective output: values are stretched, vtv against what W_O makes of their errors; the power is that of keys.
  [[nodiscard]] bool stretches_values() const { return value_objective == "output" && kind != Kind::kHadamard; }
  [[nodiscard]] std::string key_name() const;
  [[nodiscard]] std::string value_name() const;
};

/// Throws UsageError.
[[nodiscard]] Recipe resolve_recipe(const FitOptions& options);
/// For the manifest.
[[nodiscard]] Json to_json(const Recipe& recipe, const FitOptions& options);

/// What can use a set, and what it can read.
struct Target {
  std::string name;
  bool linear = false;                          // a read side that is not the inverse of a rotation
  bool per_head = false;                        // one matrix per KV head
  bool mean = false;                            // a mean key
  bool key_clips = false, value_clips = false;  // a clip ratio per KV head
  bool lloyd_max = false;                       // codec lloyd-max
  bool any_codec = false;                       // all codecs, with any number of levels
};
/// sglang-v1, sglang-v3, llamacpp, any.
[[nodiscard]] const std::vector<Target>& targets();
/// Throws UsageError that lists the names.
[[nodiscard]] const Target& target_from_name(const std::string& name);

}  // namespace oscar
