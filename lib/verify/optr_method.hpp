// SPDX-License-Identifier: MIT
// OptR fitted while the model reads calibration text: its rotations need queries and W_O.
#pragma once

#include <functional>
#include <vector>

#include "base/status.hpp"
#include "codec/kv_method.hpp"
#include "kernels/backend.hpp"
#include "model/run/runner.hpp"
#include "peers/baselines.hpp"

namespace oscar::verify {

struct OptrCalibration {
  /// Text that nothing is measured on; empty: OptR is not fitted.
  std::vector<TokenSequence> texts;
  /// W_O of a layer as read_output_projection() gives it (model/weights/output_projection.hpp).
  std::function<Tensor(int layer)> output_projection;
};

/// The method "optr" for these layers. Throws what fit_optr(), open_live() and output_projection throw.
[[nodiscard]] KvMethod fitted_optr(const OptrCalibration& calibration, ModelRunner& runner,
                                   const std::vector<LayerShape>& layers, Windows windows, Backend& backend,
                                   Status& status);

}  // namespace oscar::verify
