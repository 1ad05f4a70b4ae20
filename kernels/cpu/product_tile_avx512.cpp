// SPDX-License-Identifier: MIT
// Compiled for processors with AVX-512.
#include "kernels/cpu/product_tile.hpp"

namespace oscar::cpu {

constinit const TilePair kAvx512Tile = tile_pair<8, 2, 64>("avx512");

}  // namespace oscar::cpu
