// SPDX-License-Identifier: MIT
// Compiled for any processor: without fused multiply-adds in hardware the C library computes them, slowly.
#include "kernels/cpu/product_tile.hpp"

namespace oscar::cpu {

constinit const TilePair kPlainTile = tile_pair<4, 1, 32>("plain");

}  // namespace oscar::cpu
