// SPDX-License-Identifier: MIT
#include "peers/affine.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "base/vector_clones.hpp"

namespace oscar::methods {
namespace {

/// Side by side in as many lanes as a vector register may hold floats.
OSCAR_VECTOR_CLONES std::pair<float, float> range_of(std::span<const float> group) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> low, high;
  low.fill(group[0]), high.fill(group[0]);
  std::size_t i = 0;
  for (; i + kLanes <= group.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float x = group[i + lane];
      low[lane] = x < low[lane] ? x : low[lane];
      high[lane] = high[lane] < x ? x : high[lane];
    }
  }
  for (; i < group.size(); ++i) low[0] = std::min(low[0], group[i]), high[0] = std::max(high[0], group[i]);
  return {*std::min_element(low.begin(), low.end()), *std::max_element(high.begin(), high.end())};
}

}  // namespace

void Affine::operator()(std::span<float> group) const {
  const auto [smallest, largest] = range_of(group);
  float low = smallest * shrink, high = largest * shrink;
  if (include_zero) low = std::min(low, 0.0F), high = std::max(high, 0.0F);
  const float top = static_cast<float>(levels - 1);
  const float scale = std::max((high - low) / top, smallest_scale);
  const float read_scale = round_to(parameters, scale);
  const auto whole = [this](float x) { return rounding == Rounding::kUp ? std::floor(x + 0.5F) : round_even(x); };
  if (zero == ZeroPoint::kMinimum) {
    const float read_low = round_to(parameters, low);
    for (float& x : group) x = std::clamp(whole((x - low) / scale), 0.0F, top) * read_scale + read_low;
    return;
  }
  const float z = round_even(-low / read_scale);
  const float before = zero == ZeroPoint::kIntegerShifted ? z : 0.0F;
  for (float& x : group) {
    const float code = whole(x / read_scale + before) + (z - before);
    x = (std::clamp(code, 0.0F, top) - z) * read_scale;
  }
}

double Affine::code_bits() const { return std::bit_width(static_cast<unsigned>(levels - 1)); }

SideMethod affine_by_token(const Affine& affine, int group) {
  return by_token(affine, group, bits_by_token(affine.code_bits(), 2, group));
}

SideMethod affine_by_channel(const Affine& affine, int group) {
  return by_channel(affine, group, [=](const KvShape&) { return StoredBits{affine.code_bits(), 2.0 / group}; });
}

}  // namespace oscar::methods
