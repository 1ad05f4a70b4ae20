// SPDX-License-Identifier: MIT
// Four levels for Gaussian values: x^ = mean + sigma c((x - mean) / sigma), mean and sigma per group.
//   lloyd_max:        a Hadamard first, a group per (token, head), the levels of least squared error
//   lloyd_max_q2_0:   blocks of 32 of its llama.cpp branch, rotated: levels +-0.4528, +-0.9816, thresholds +-0.6745, 0;
//                     the outer level is the threshold of the right ones
// OSCAR has rotations of its own: a Hadamard stands in for them. No clipping.
#include "peers/lloyd_max.hpp"

#include <cmath>

#include "peers/families.hpp"
#include "peers/sides.hpp"

namespace oscar::methods {
namespace {

void standardize(std::span<float> group, const Codebook& book) {
  double mean = 0, square = 0;
  const auto size = static_cast<double>(group.size());
  for (const float x : group) mean += x / size;
  for (const float x : group) square += (x - mean) * (x - mean) / size;
  const auto sigma = static_cast<float>(std::sqrt(square));
  if (sigma == 0) return;
  const auto middle = static_cast<float>(mean);
  for (float& x : group) x = book.nearest((x - middle) / sigma) * sigma + middle;
}

/// group 0: the whole row.
SideMethod standardized(const Codebook& book, int group) {
  return rotated(
      by_token([=](std::span<float> values) { standardize(values, book); }, group, bits_by_token(2, 2, group)));
}

}  // namespace

Codebook q2_0_codebook() { return {{-0.9816F, -0.4528F, 0.4528F, 0.9816F}, {-0.6745F, 0, 0.6745F}}; }

Family lloyd_max_methods() {
  const SideMethod best = standardized(gaussian_codebook(2), 0);
  SideMethod fork = standardized(q2_0_codebook(), 32);
  fork.bits = fixed_bits(3);
  return {{"lloyd_max", "Hadamard, INT2 codes with Lloyd-Max levels", {64, 256}, best, best},
          {"lloyd_max_q2_0", "Hadamard, Q2_0 of OSCAR's llama.cpp branch", {512, 2048}, fork, fork}};
}

}  // namespace oscar::methods
