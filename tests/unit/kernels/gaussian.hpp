// SPDX-License-Identifier: MIT
// Random rows for the tests of this folder.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace oscar::test {

/// The same values for the same seed.
[[nodiscard]] inline std::vector<float> gaussian(std::size_t size, unsigned seed, float scale = 1.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(size);
  for (float& x : values) x = normal(engine);
  return values;
}

}  // namespace oscar::test
