// SPDX-License-Identifier: MIT
// What a fit does to each layer, resolved: every choice that the mathematics knows, and none about data or servers.
#pragma once

#include <set>
#include <string>

#include "kernels/mixed_sequence.hpp"
#include "method/compose.hpp"
#include "moments/moment.hpp"

namespace oscar {

struct Recipe {
  enum class Kind {
    kSpectral,  // keys are rotated by the eigenvectors of the key objective, values by those of sst
    kHadamard,  // no moments at all
    kStretch    // the best linear transform of keys (method/stretch.hpp)
  } kind = Kind::kSpectral;
  /// The name by which people asked for it: "oscar", "stretch" …
  std::string name;
  Moment key_objective = Moment::kQqt;  // or kFisher
  Composition composition = Composition::kRHPbr;
  /// One matrix per KV head instead of one per layer.
  bool key_per_head = false, value_per_head = false;
  /// One clip ratio per KV head instead of one per layer.
  bool key_clip_per_head = false, value_clip_per_head = false;
  /// Each head's mean key is subtracted from every key.
  bool center = false;
  double stretch_power = 1, stretch_lambda = 1e-2;
  HistoryCodecs codecs;  // both are set; clip ratios are fitted or fixed elsewhere
  Windows windows;

  /// "<objective>_<composition>", with "stretch_" before it where it applies; "hadamard".
  [[nodiscard]] std::string key_name() const;
  [[nodiscard]] std::string value_name() const;
  /// Returns the moments that must be known before anything is solved. kKeys stands for sums of keys, for their mean.
  [[nodiscard]] std::set<Moment> moments() const;
};

}  // namespace oscar
