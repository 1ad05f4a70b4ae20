// SPDX-License-Identifier: MIT
// Floating-point caches.
//   fp8:       e4m3(x), the engines' default scale of 1
//   fp8_token: s = max |x| / 448 of a (token, head) row, x^ = s e4m3(x / s)
//   nvfp4:     blocks of 16: s = e4m3(max |x| / (6 g)), x^ = s g e2m1(x / (s g)); g fp32, of the layer: here of the
//              history, such that the largest s is 448
//   mxfp4:     blocks of 16 as in SGLang: s = 2^ceil(log2(max |x| / 6)), x^ = s e2m1(x / s), ties up
#include <cmath>

#include "peers/codebook.hpp"
#include "peers/families.hpp"
#include "peers/number_formats.hpp"
#include "peers/sides.hpp"

namespace oscar::methods {
namespace {

constexpr int kMxBlock = 16;

void fp8_token(std::span<float> row) {
  const float scale = largest_magnitude(row) / kLargestE4M3;
  if (scale == 0) return;
  for (float& x : row) x = round_to_e4m3(x / scale) * scale;
}

void nvfp4(const History& history) {
  const float global = largest_magnitude(history.rows) / (kLargestE2M1 * kLargestE4M3);
  if (global == 0) return;
  along_rows(by_head(history), kMxBlock, [global](std::span<float> block) {
    const float scale = round_to_e4m3(largest_magnitude(block) / (kLargestE2M1 * global)) * global;
    for (float& x : block) x = scale == 0 ? 0 : round_to_e2m1(x / scale) * scale;
  });
}

void mxfp4(std::span<float> block) {
  static const Codebook kMagnitudes = codebook_of(std::vector<double>{0, 0.5, 1, 1.5, 2, 3, 4, 6});
  const float largest = largest_magnitude(block);
  if (largest == 0) return;
  const float scale = std::exp2(std::ceil(std::log2(largest / kLargestE2M1)));
  for (float& x : block) x = std::copysign(kMagnitudes.nearest(std::abs(x) / scale) * scale, x);
}

SequenceMethod both_sides(const std::string& name, const std::string& summary, const SideMethod& side) {
  return {name, summary, {0, 0}, side, side};
}

}  // namespace

SideMethod fp8_side() {
  const auto round_row = [](std::span<float> row) {
    for (float& x : row) x = round_to_e4m3(x);
  };
  return by_token(round_row, 0, fixed_bits(8));
}

Family float_methods() {
  return {both_sides("fp8", "FP8 e4m3, scale 1", fp8_side()),
          both_sides("fp8_token", "FP8 e4m3, a scale per token and head", by_token(fp8_token, 0, bits_by_token(8, 1))),
          both_sides("nvfp4", "NVFP4, blocks of 16; global scale of the history itself", {nvfp4, fixed_bits(4.5)}),
          both_sides("mxfp4", "FP4 with power-of-two scales, blocks of 16, as in SGLang",
                     by_token(mxfp4, kMxBlock, fixed_bits(4.5)))};
}

}  // namespace oscar::methods
