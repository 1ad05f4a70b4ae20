// SPDX-License-Identifier: MIT
// Per layer, how keys and values are transformed before they are quantised to 2 bits, and what that was made from. A
// value type; a set has it as one of its parts (set/set.hpp).
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "kernels/types.hpp"
#include "model/config/identity.hpp"
#include "tensor/tensor.hpp"

namespace oscar {

/// The transform of the keys, or of the values, of one layer, and what it was made from. Its numbers are exact in
/// float32.
struct SideTransform : Transform {
  std::vector<double> eigenvalues;       // (rotation.count, dim), ascending; empty: not known
  MatrixStack covariance;                // what was decomposed, rounded to float32; count 0: not known
  MatrixStack query_covariance;          // of a stretch: what `covariance`, then of keys, was weighed against
  double clip_ratio = 0;                 // RowCodec::clip_ratio; <= 0: no clipping
  std::vector<double> head_clip_ratios;  // HistoryCodec::head_clip_ratios: of the KV heads, where they differ
  Json scores = Json::object();          // what the fit measured for this side; recorded, not interpreted

  /// `codec` with this side's clip ratios.
  [[nodiscard]] HistoryCodec clipped(RowCodec codec) const {
    codec.clip_ratio = clip_ratio;
    return {codec, head_clip_ratios};
  }
};

/// Layer ids are below this: they decide how long a server's table of clip ratios is.
inline constexpr int kMostLayers = 100'000;

struct LayerRotation {
  int layer_id = 0;
  SideTransform key, value;
};

struct RotationPart {
  /// Objectives as the .pt files name them: "<objective>_<composition>", "hadamard" or "uresidual".
  std::string key_objective, value_objective;
  /// Ascending by layer_id, possibly sparse.
  std::vector<LayerRotation> layers;

  ModelIdentity model;
  CalibrationData calibration;
  Windows windows;
  RowCodec key_codec, value_codec;  // grid, levels and group size; the clip ratios are per layer and side
  /// True if the clip ratios are known: they are not in a bare .pt file.
  bool has_clip_ratios = false;
  /// The one ratio per side for servers that take no table.
  double key_clip_scalar = 0, value_clip_scalar = 0;
  /// Of latent rows, which MLA models cache in the place of keys and values: made of a folder with a file per layer.
  bool latent = false;
  /// The recipe with every option, scores, timings …: recorded as given, not interpreted.
  Json recipe = Json::object();
};

}  // namespace oscar
