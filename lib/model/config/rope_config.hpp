// SPDX-License-Identifier: MIT
// Rotary embeddings as config.json describes them, in its older and newer spellings.
#pragma once

#include "model/config/block.hpp"
#include "model/config/config_file.hpp"

namespace oscar {

/// What a model family takes for members that its config.json leaves out. theta 0: it must be there.
struct RopeDefaults {
  double theta = 0;
  double partial = 1;  // of the head
  bool alpha = false;  // "dynamic" may have an "alpha", by which the base grows once and for all
};

/// Reads the rotary embedding of heads of `head_dim` channels in layers of this type ("full_attention",
/// "sliding_attention", …; matters only where the file tells them apart). Throws DataError: a type that is not
/// supported, or a member that is missing.
[[nodiscard]] RopeSpec read_rope(const ConfigFile& file, const std::string& layer_type, int head_dim,
                                 const RopeDefaults& defaults = {});

/// Reads the angle of sliding layers that have one of their own (Gemma 3): nested, or "rope_local_base_freq" in older
/// files.
[[nodiscard]] RopeSpec read_local_rope(const ConfigFile& file, int head_dim);

/// 0.1 * weight * ln(factor) + 1: by how much YaRN sharpens attention for a longer context.
[[nodiscard]] double yarn_scale(double factor, double weight = 1);

}  // namespace oscar
