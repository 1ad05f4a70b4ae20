// SPDX-License-Identifier: MIT
// Compiled for any processor: without fused multiply-adds in hardware the C library computes them, slowly.
#include "kernels/cpu/product_tile.hpp"

namespace oscar::cpu {

void plain_sum(std::int64_t depth, const double* a, std::int64_t row_step, std::int64_t depth_step, const double* panel,
               double* out) {
  tile_sum<double, 4, 1, 32>(depth, a, row_step, depth_step, panel, out);
}

void plain_sum(std::int64_t depth, const float* a, std::int64_t row_step, std::int64_t depth_step, const float* panel,
               float* out) {
  tile_sum<float, 4, 1, 32>(depth, a, row_step, depth_step, panel, out);
}

}  // namespace oscar::cpu
