// SPDX-License-Identifier: MIT
// Compiled for processors with AVX2 and FMA.
#include "kernels/cpu/product_tile.hpp"

namespace oscar::cpu {

void avx2_sum(std::int64_t depth, const double* a, std::int64_t row_step, std::int64_t depth_step, const double* panel,
              double* out) {
  tile_sum<double, 6, 2, 32>(depth, a, row_step, depth_step, panel, out);
}

void avx2_sum(std::int64_t depth, const float* a, std::int64_t row_step, std::int64_t depth_step, const float* panel,
              float* out) {
  tile_sum<float, 6, 2, 32>(depth, a, row_step, depth_step, panel, out);
}

}  // namespace oscar::cpu
