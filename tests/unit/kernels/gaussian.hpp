// SPDX-License-Identifier: MIT
// Random rows for tests.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace oscar::test {

/// Returns values of N(0, scale^2), the same for the same seed.
[[nodiscard]] inline std::vector<float> gaussian_floats(std::size_t size, unsigned seed, float scale = 1.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(size);
  for (float& x : values) x = normal(engine);
  return values;
}

}  // namespace oscar::test
