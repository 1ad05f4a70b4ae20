// SPDX-License-Identifier: MIT
// Symmetric INT2 of each (token, head) row, with nothing before it. "Symmetric INT2" names two quantisers:
//   naive_sym:      s = max |x|,      q = clamp(even(x / s), -2, 1),  x^ = q s          (only three levels are used)
//   naive_midrise:  s = max |x| / 2,  q = clamp(floor(x / s), -2, 1), x^ = (q + 1/2) s
// s is fp16.
#include <cmath>

#include "peers/families.hpp"
#include "peers/number_formats.hpp"
#include "peers/sides.hpp"

namespace oscar::methods {
namespace {

void three_levels(std::span<float> row) {
  const float scale = largest_magnitude(row);
  if (scale == 0) return;
  const float read_scale = round_to(NumberFormat::kF16, scale);
  for (float& x : row) x = std::clamp(round_even(x / scale), -2.0F, 1.0F) * read_scale;
}

void mid_rise(std::span<float> row) {
  const float scale = largest_magnitude(row) / 2;
  if (scale == 0) return;
  const float read_scale = round_to(NumberFormat::kF16, scale);
  for (float& x : row) x = (std::clamp(std::floor(x / scale), -2.0F, 1.0F) + 0.5F) * read_scale;
}

}  // namespace

Family symmetric_methods() {
  const SideMethod three = by_token(three_levels, 0, bits_by_token(2, 1)),
                   four = by_token(mid_rise, 0, bits_by_token(2, 1));
  return {{"naive_sym", "INT2, symmetric, scale = max |x|: three levels", {0, 0}, three, three},
          {"naive_midrise", "INT2, symmetric, four levels, scale = max |x| / 2", {0, 0}, four, four}};
}

}  // namespace oscar::methods
