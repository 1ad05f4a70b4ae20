// SPDX-License-Identifier: MIT
// The method: from Q/K/V to rotations and clip ratios, one layer at a time. Memory is one chunk of the source plus
// moments. Paper: OSCAR (arXiv 2605.17757); published fitter: rotation/compute_kv_rotation.py. The same input gives the
// same bits, whatever the number of threads.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.hpp"
#include "dump/source.hpp"
#include "fit/clip_fit.hpp"
#include "kernels/backend.hpp"
#include "rotation/rotation_set.hpp"

namespace oscar {

struct FitOptions {
  /// oscar: the objectives and composition below. ktk_vtv: plain key and value moments. hadamard: no data but the clip
  /// fit. uresidual: eigenvectors of the residual moment aligned to those of the covariance.
  std::string recipe = "oscar";
  /// qqt or ktk; value objective: sst, oto or vtv. Only for recipe oscar.
  std::string key_objective = "qqt";
  std::string value_objective = "sst";
  /// See transform/compose.hpp. Only for recipes oscar and ktk_vtv.
  std::string composition = "r_h_pbr";
  /// layer: one rotation per layer; head: one per KV head.
  std::string granularity = "layer";
  /// What must be able to use the result: sglang-v1 (one orthogonal matrix per layer) or any.
  std::string target = "sglang-v1";
  /// How rows become codes: minmax, as servers do, or lsq (unbiased; only for target any; takes no clip ratio).
  std::string codec = "minmax";
  /// "auto": fitted per layer; "off"; or "K,V", two ratios. For codec minmax.
  std::string clip = "auto";
  /// Channels per (scale, zero) pair; 0 = the whole head.
  int group_size = 0;
  Windows windows;
  ClipFitOptions clip_fit;
  /// Folder (or rotation set) with the reference k_rotation and v_rotation of recipe uresidual.
  std::filesystem::path reference_rotation;
};

/// The set, and how long its parts took.
struct FitResult {
  RotationSet set;
  double rotation_seconds = 0, clip_seconds = 0;
};

/// Throws UsageError for options that do not exist or do not fit together, before anything is read; DataError for bad
/// data.
[[nodiscard]] FitResult fit(QkvSource& source, const FitOptions& options, Backend& backend, Status& status);

}  // namespace oscar
