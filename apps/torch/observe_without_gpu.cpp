// SPDX-License-Identifier: MIT
#include "observe_state.hpp"

namespace oscar::tap {

bool add_rows_on_gpu(LayerState&, const Rows&, int64_t) { return false; }

bool is_capturing(const Tensor&) { return false; }

}  // namespace oscar::tap
