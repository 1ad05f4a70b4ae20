// SPDX-License-Identifier: MIT
// Compiled for processors with AVX2 and FMA.
#include "kernels/cpu/product_tile.hpp"

namespace oscar::cpu {

constinit const TilePair kAvx2Tile = tile_pair<6, 2, 32>("avx2");

}  // namespace oscar::cpu
