// SPDX-License-Identifier: MIT
#include "observe_state.hpp"

namespace oscar::operators {

std::unique_ptr<GpuLayer> make_gpu_layer(const LayerShape&, const Tensor&) { return nullptr; }

bool is_capturing(const Tensor&) { return false; }

}  // namespace oscar::operators
