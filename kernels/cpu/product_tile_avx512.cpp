// SPDX-License-Identifier: MIT
// Compiled for processors with AVX-512.
#include "kernels/cpu/product_tile.hpp"

namespace oscar::cpu {

void avx512_sum(std::int64_t depth, const double* a, std::int64_t row_step, std::int64_t depth_step,
                const double* panel, double* out) {
  tile_sum<double, 8, 2, 64>(depth, a, row_step, depth_step, panel, out);
}

void avx512_sum(std::int64_t depth, const float* a, std::int64_t row_step, std::int64_t depth_step, const float* panel,
                float* out) {
  tile_sum<float, 8, 2, 64>(depth, a, row_step, depth_step, panel, out);
}

}  // namespace oscar::cpu
