// SPDX-License-Identifier: MIT
#include "kernels/reference/row_codec.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numbers>

#include "kernels/arguments.hpp"
#include "kernels/reference/strand_sum.hpp"

namespace oscar::reference {
namespace {

/// The code of each channel of a group, and the group's map back.
struct Group {
  std::vector<int> codes;
  float scale = 0, zero = 0;
};

Group encode_min_max(std::span<const float> x, int levels) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  Group group;
  group.scale = std::max(*high - *low, 1e-8F) / static_cast<float>(levels - 1);
  group.zero = -*low / group.scale;
  for (const float value : x) {
    const float place = value / group.scale + group.zero + 0.5F;
    const bool positive = place > 0;  // false for NaN, too: a group of equal huge values
    group.codes.push_back(positive ? static_cast<int>(std::min(place, static_cast<float>(levels - 1))) : 0);
  }
  return group;
}

/// Returns the mean squared error of N(0, 1) on a grid of `levels` levels around 0 with distance `step`.
double gaussian_error(int levels, double step) {
  // Over a cell [a, b] with level l: the integral of (x - l)^2 phi(x) = [-x phi + 2 l phi + (1 + l^2) Phi] from a to b.
  const auto integral = [](double x, double level) {
    if (std::isinf(x)) return x > 0 ? 1 + level * level : 0.0;
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    const double below = (1 + std::erf(x / std::numbers::sqrt2)) / 2;
    return (2 * level - x) * density + (1 + level * level) * below;
  };
  double error = 0;
  for (int i = 0; i < levels; ++i) {
    const double level = (i - (levels - 1) / 2.0) * step;
    const double from = i == 0 ? -INFINITY : level - step / 2, to = i == levels - 1 ? INFINITY : level + step / 2;
    error += integral(to, level) - integral(from, level);
  }
  return error;
}

/// Finds the distance of levels that has the least gaussian_error(), digit by digit to four decimals.
double best_gaussian_step(int levels) {
  int best = 10'000;  // in units of 1e-4
  for (const int unit : {1'000, 100, 10, 1}) {
    const int around = best;
    for (int step = std::max(around - 12 * unit, 1); step <= around + 12 * unit; step += unit) {
      if (gaussian_error(levels, step / 1e4) < gaussian_error(levels, best / 1e4)) best = step;
    }
  }
  return best / 1e4;
}

/// Returns where "lsq" starts: best_gaussian_step() of 2 to 256 levels.
double starting_step(int levels) {
  static const std::vector<double> steps = [] {
    std::vector<double> found(2);
    for (int n = 2; n <= 256; ++n) found.push_back(best_gaussian_step(n));
    return found;
  }();
  return steps.at(static_cast<std::size_t>(levels));
}

Group encode_least_squares(std::span<const float> x, int levels) {
  const auto size = static_cast<double>(x.size());
  const double mean = strand_sum<double>(x.size(), [&](std::size_t i) { return double{x[i]}; }) / size;
  const auto from_mean = [&](std::size_t i) { return x[i] - mean; };
  const double variance =
      strand_sum<double>(x.size(), [&](std::size_t i) { return from_mean(i) * from_mean(i); }) / size;
  double scale = std::sqrt(variance) * starting_step(levels) + 1e-8;
  double low = mean - (levels - 1) / 2.0 * scale;
  Group group{std::vector<int>(x.size()), 0, 0};
  const auto code = [&](std::size_t i) { return static_cast<double>(group.codes[i]); };
  const auto take_codes = [&] {
    for (std::size_t i = 0; i < x.size(); ++i) {
      group.codes[i] = static_cast<int>(std::clamp(std::floor((x[i] - low) / scale + 0.5), 0.0, levels - 1.0));
    }
  };
  for (int refit = 0; refit < 3; ++refit) {
    take_codes();
    const double mean_code = strand_sum<double>(x.size(), code) / size;
    const auto code_from_mean = [&](std::size_t i) { return code(i) - mean_code; };
    const double covariance =
        strand_sum<double>(x.size(), [&](std::size_t i) { return code_from_mean(i) * from_mean(i); });
    const double spread =
        strand_sum<double>(x.size(), [&](std::size_t i) { return code_from_mean(i) * code_from_mean(i); });
    scale = std::max(covariance / std::max(spread, 1e-6), 1e-8);
    low = mean - scale * mean_code;
  }
  take_codes();
  const double energy = strand_sum<double>(x.size(), [&](std::size_t i) { return double{x[i]} * x[i]; });
  const double projection = strand_sum<double>(x.size(), [&](std::size_t i) { return x[i] * (code(i) * scale + low); });
  group.scale = static_cast<float>(scale * (energy / std::max(projection, 1e-9)));
  group.zero = static_cast<float>(-low / scale);
  return group;
}

Group encode_lloyd_max(std::span<const float> x) {
  constexpr double kThreshold = 0.98107, kOuterLevel = 1.50956, kWider = 1.16;
  const auto size = static_cast<double>(x.size());
  const double mean = strand_sum<double>(x.size(), [&](std::size_t i) { return double{x[i]}; }) / size;
  const double variance =
      strand_sum<double>(x.size(), [&](std::size_t i) { return (x[i] - mean) * (x[i] - mean); }) / size;
  const double deviation = std::sqrt(variance + 1e-8), scale = kWider * (2 * kOuterLevel / 3) * deviation;
  Group group;
  for (const float value : x) {
    const double t = (value - mean) / deviation;
    group.codes.push_back(t >= kThreshold ? 3 : t >= 0 ? 2 : t >= -kThreshold ? 1 : 0);
  }
  group.scale = static_cast<float>(scale), group.zero = static_cast<float>(1.5 - mean / scale);
  return group;
}

Group encode_group(const RowCodec& codec, std::span<const float> x) {
  if (codec.grid == Grid::kLeastSquares) return encode_least_squares(x, codec.levels);
  if (codec.grid == Grid::kLloydMax) return encode_lloyd_max(x);
  return encode_min_max(x, codec.levels);
}

/// Returns what a scale or zero is once it is stored. float16 saturates, so that it never becomes infinite.
float as_stored(float value, DType dtype) {
  constexpr float kLargest = 65504;
  if (dtype == DType::kF16) return float_from_f16(f16_from_float(std::clamp(value, -kLargest, kLargest)));
  return dtype == DType::kBF16 ? round_to_bf16(value) : value;
}

}  // namespace

float clip_threshold(std::span<const float> row, double ratio, ClipSearch search) {
  const int size = static_cast<int>(row.size()), rank = std::min(static_cast<int>(ratio * size), size - 1);
  std::vector<float> magnitudes;
  for (const float x : row) magnitudes.push_back(std::abs(x));
  std::sort(magnitudes.begin(), magnitudes.end());
  if (search == ClipSearch::kSort) return magnitudes[static_cast<std::size_t>(rank)];
  float low = 0, high = magnitudes.back();
  for (int halvings = std::bit_width(row.size()) - 1; halvings > 0; --halvings) {
    const float middle = (low + high) / 2;
    const auto above = std::count_if(magnitudes.begin(), magnitudes.end(), [&](float x) { return x > middle; });
    (above > size - rank ? low : high) = middle;
  }
  return high;
}

QuantizedRows encode_row(const RowCodec& codec, std::span<const float> row) {
  const auto size = static_cast<std::size_t>(checked_group_size(codec, static_cast<int>(row.size())));
  std::vector<float> clipped(row.begin(), row.end());
  if (codec.clip_ratio > 0) {
    const float threshold = clip_threshold(row, codec.clip_ratio, codec.clip_search);
    for (float& x : clipped) x = std::clamp(x, -threshold, threshold);
  }
  QuantizedRows encoded;
  for (std::size_t first = 0; first < row.size(); first += size) {
    const Group group = encode_group(codec, std::span(clipped).subspan(first, size));
    for (const int code : group.codes) encoded.codes.push_back(static_cast<std::uint8_t>(code));
    encoded.scale.push_back(as_stored(group.scale, codec.scale_dtype));
    encoded.zero.push_back(as_stored(group.zero, codec.scale_dtype));
  }
  return encoded;
}

void decode_row(const QuantizedRows& encoded, std::span<float> row) {
  const std::size_t group_size = row.size() / encoded.scale.size();
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t group = i / group_size;
    row[i] = (static_cast<float>(encoded.codes[i]) - encoded.zero[group]) * encoded.scale[group];
  }
}

}  // namespace oscar::reference
