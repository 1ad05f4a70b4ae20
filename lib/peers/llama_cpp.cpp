// SPDX-License-Identifier: MIT
// llama.cpp's cache types: blocks of 32 channels with fp16 scales (and minima); codes are found with fp32 scales.
//   q8_0:        d = max |x| / 127,              q = x / d to the nearest, ties away from 0,    x^ = q d
//   q4_0, q5_0:  d = m / -h, m the value of largest |x|, h = 8, 16:
//                q = min(2h - 1, int(x / d + h + 1/2)),                                          x^ = (q - h) d
//   q4_1, q5_1:  d = (max - min) / 15, / 31,     q = int((x - min) / d + 1/2),                  x^ = q d + min
// _rot: as since April 2026, where 64 divides head_dim: keys times a Hadamard of the largest power of two that does,
// values times blocks of 64.
#include <cmath>

#include "peers/affine.hpp"
#include "peers/families.hpp"

namespace oscar::methods {
namespace {

constexpr int kGgmlBlock = 32;

float of_largest_magnitude(std::span<const float> x) {
  float largest = 0;
  for (const float value : x) largest = std::abs(value) > std::abs(largest) ? value : largest;
  return largest;
}

void q8_0(std::span<float> block) {
  const float d = std::abs(of_largest_magnitude(block)) / 127;
  if (d == 0) return;
  const float read_d = round_to(NumberFormat::kF16, d);
  for (float& x : block) x = std::round(x / d) * read_d;
}

/// The value of largest magnitude gets the end of the range that has one code more.
struct SignedRange {
  float half;

  void operator()(std::span<float> block) const {
    const float d = of_largest_magnitude(block) / -half;
    if (d == 0) return;
    const float read_d = round_to(NumberFormat::kF16, d);
    for (float& x : block) x = (std::min(2 * half - 1, std::trunc(x / d + half + 0.5F)) - half) * read_d;
  }
};

SideMethod rotated_as_llama_cpp(const SideMethod& side, int order) {
  const SideMethod turned = rotated(side, order);
  return {[=](const History& history) { (history.dim % 64 == 0 ? turned : side).reconstruct(history); }, side.bits};
}

}  // namespace

Family llama_cpp_methods() {
  const auto with_minimum = [](int levels) { return Affine{.levels = levels, .rounding = Rounding::kUp}; };
  const std::vector<std::pair<std::string, SideMethod>> types{
      {"q8_0", by_token(q8_0, kGgmlBlock, fixed_bits(8.5))},
      {"q5_1", by_token(with_minimum(32), kGgmlBlock, fixed_bits(6))},
      {"q5_0", by_token(SignedRange{16}, kGgmlBlock, fixed_bits(5.5))},
      {"q4_1", by_token(with_minimum(16), kGgmlBlock, fixed_bits(5))},
      {"q4_0", by_token(SignedRange{8}, kGgmlBlock, fixed_bits(4.5))}};
  Family family;
  for (const auto& [name, side] : types) {
    family.push_back({name, "llama.cpp's " + name, {0, 0}, side, side});
    family.push_back({name + "_rot",
                      "llama.cpp's " + name + " with its attention rotation",
                      {0, 0},
                      rotated_as_llama_cpp(side, 0),
                      rotated_as_llama_cpp(side, 64)});
  }
  return family;
}

}  // namespace oscar::methods
