// SPDX-License-Identifier: MIT
// A short descent on the softmax KL itself, over what the moments leave open: the basis in which keys are quantised.
// The transform T becomes T U and the read side T^-T U, U orthogonal, so that exact scores stay. Steps of Adam along
// the straight-through gradient of kernels/key_gradient.hpp, each turned into a rotation by Cayley's formula; the step
// with the lowest KL on the sample is kept, which may be the first. Deterministic.
#pragma once

#include <span>
#include <vector>

#include "base/status.hpp"
#include "kernels/backend.hpp"
#include "moments/sample.hpp"
#include "rotation/rotation_set.hpp"

namespace oscar {

struct RefineOptions {
  int steps = 30;  // 0: recipe auto does not try it
  /// How much the first step changes an entry of the skew matrix. The rate falls to 0 by the last step.
  double rate = 8e-3;
  /// What is looked at: more keys generalise better, and cost time in proportion.
  SampleOptions sample{.sample_tokens = 6144, .max_sequence_tokens = 2048, .query_rows = 4096, .seed = 4};
};

/// Turns the key transforms of layers in place, and records what it did under their scores["refine"]. samples: by
/// layer, whose values are not looked at; a layer without one stays as it is, with a warning. codec: of the keys.
void refine_keys(std::span<const std::span<const SampledSequence>> samples, const RowCodec& codec, Windows windows,
                 const RefineOptions& options, std::vector<LayerRotation>& layers, Backend& backend, Status& status);

}  // namespace oscar
