// SPDX-License-Identifier: MIT
#include "measure/peers/quantizers.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/exp.hpp"
#include "tensor/dtype.hpp"

namespace oscar::methods {
namespace {

/// A format without infinities: numbers from 2^lowest_exponent on have `mantissa_bits` after the leading one, smaller
/// ones share their spacing.
float round_to_small_float(float x, int mantissa_bits, int lowest_exponent, float largest) {
  const float magnitude = std::min(std::abs(x), largest);
  if (!(magnitude > 0)) return x;  // zero, NaN
  const int exponent = static_cast<int>(std::bit_cast<std::uint32_t>(magnitude) >> 23) - 127;
  const int spacing_exponent = std::max(exponent, lowest_exponent) - mantissa_bits;
  const auto spacing = std::bit_cast<float>(static_cast<std::uint32_t>(spacing_exponent + 127) << 23);
  return std::copysign(round_even(magnitude / spacing) * spacing, x);
}

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

double code_bits(const Affine& affine) { return std::bit_width(static_cast<unsigned>(affine.levels - 1)); }

double density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }
double probability_below(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

OSCAR_VECTOR_CLONES void take_levels(const Codebook& book, float* x, std::size_t count) {
  constexpr std::size_t kBlock = 64;
  std::array<float, kBlock> level;
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    level.fill(book.levels[0]);
    for (std::size_t b = 0; b < book.bounds.size(); ++b) {
      const float bound = book.bounds[b], above = book.levels[b + 1];
      for (std::size_t i = 0; i < kBlock && i < size; ++i) level[i] = bound <= x[begin + i] ? above : level[i];
    }
    std::copy_n(level.begin(), size, x + begin);
  }
}

/// Of neighbours; what they give goes to the two halves of `to`. After log2(n) of these steps every bit of the index
/// has been the lowest once and is back in its place: the butterflies of the usual network, in loops that vectorise.
OSCAR_VECTOR_CLONES void butterflies(const float* __restrict from, float* __restrict to, std::size_t half) {
  for (std::size_t i = 0; i < half; ++i) {
    const float a = from[2 * i], b = from[2 * i + 1];
    to[i] = a + b, to[i + half] = a - b;
  }
}

void transform_block(std::span<float> x) {
  thread_local std::vector<float> scratch;
  scratch.resize(x.size());
  float *from = x.data(), *to = scratch.data();
  for (std::size_t done = 1; done < x.size(); done *= 2) {
    butterflies(from, to, x.size() / 2);
    std::swap(from, to);
  }
  const float factor = 1 / std::sqrt(static_cast<float>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = from[i] * factor;
}

template <class Move>
void rearrange(Matrix m, std::span<const std::size_t> order, const Move& move) {
  for_each_row(m, [&](std::span<float> row) {
    const std::vector<float> before(row.begin(), row.end());
    for (std::size_t j = 0; j < row.size(); ++j) move(row, before, j, order[j]);
  });
}

}  // namespace

float round_to_f16(float x) { return float_from_f16(f16_from_float(x)); }
float round_to_e4m3(float x) { return round_to_small_float(x, 3, -6, kLargestE4M3); }
float round_to_e2m1(float x) { return round_to_small_float(x, 1, 0, kLargestE2M1); }

void Affine::operator()(std::span<float> group) const {
  auto [low, high] = range_of(group);
  if (include_zero) low = std::min(low, 0.0F), high = std::max(high, 0.0F);
  const float top = static_cast<float>(levels - 1);
  const float scale = std::max((high - low) / top, smallest_scale);
  const float read_scale = round_to_f16(scale);
  const auto whole = [this](float x) { return rounding == Rounding::kUp ? std::floor(x + 0.5F) : round_even(x); };
  if (zero == ZeroPoint::kMinimum) {
    const float read_low = round_to_f16(low);
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

SideMethod affine_by_token(const Affine& affine, int group) {
  return by_token(affine, group, bits_by_token(code_bits(affine), 2, group));
}

SideMethod affine_by_channel(const Affine& affine, int group) {
  return {[=](const History& history) {
            along_columns(by_token(history), static_cast<std::size_t>(group),
                          [&](std::span<float> values, std::size_t) { affine(values); });
          },
          [=](const KvShape&) {
            return StoredBits{code_bits(affine), 2.0 / group};
          }};
}

void Codebook::take_nearest(std::span<float> values) const { take_levels(*this, values.data(), values.size()); }

/// Moves every level to the mean of its cell until they stay.
Codebook gaussian_codebook(int bits) {
  constexpr int kMaxIterations = 5000;
  constexpr double kSettled = 1e-9, kInfinity = std::numeric_limits<double>::infinity();
  const std::size_t count = std::size_t{1} << bits;
  std::vector<double> levels(count);
  for (std::size_t i = 0; i < count; ++i) {
    levels[i] = (static_cast<double>(i) + 0.5) * 6 / static_cast<double>(count) - 3;
  }
  double change = 1;
  for (int round = 0; round < kMaxIterations && change > kSettled; ++round) {
    const std::vector<double> before = levels;
    change = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double low = i == 0 ? -kInfinity : (before[i - 1] + before[i]) / 2;
      const double high = i + 1 == count ? kInfinity : (before[i] + before[i + 1]) / 2;
      levels[i] = (density(low) - density(high)) / (probability_below(high) - probability_below(low));
      change = std::max(change, std::abs(levels[i] - before[i]));
    }
  }
  Codebook book;
  for (std::size_t i = 0; i < count; ++i) {
    book.levels.push_back(static_cast<float>(levels[i]));
    if (i > 0) book.bounds.push_back(static_cast<float>((levels[i - 1] + levels[i]) / 2));
  }
  return book;
}

double groups_per_element(int size, int group) {
  return group == 0 ? 1.0 / size : static_cast<double>((size + group - 1) / group) / size;
}

Bits fixed_bits(double bits) {
  return [=](const KvShape&) { return StoredBits{bits, 0}; };
}

Bits bits_by_token(double codes, int parameters, int group) {
  return [=](const KvShape& shape) {
    return StoredBits{codes, parameters * groups_per_element(shape.head_dim, group)};
  };
}

SideMethod rotated(SideMethod side, int order) {
  const auto turn = [order](const History& history) {
    hadamard(by_head(history), static_cast<std::size_t>(order == 0 ? history.dim : order));
  };
  return {[=, inner = std::move(side.reconstruct)](const History& history) {
            turn(history);
            history.store();
            inner(history);
            turn(history);
          },
          std::move(side.bits)};
}

SideMethod before_rope(SideMethod side) {
  return {[inner = std::move(side.reconstruct)](const History& history) {
            const auto turned = [&](Turn direction) {
              if (history.context.rotary) {
                turn(*history.context.rotary, direction, history.rows, history.heads, history.first_position);
              }
            };
            turned(Turn::kBack);
            inner(history);
            turned(Turn::kForth);
          },
          std::move(side.bits)};
}

void hadamard(Matrix m, std::size_t order) {
  std::size_t block = 1;
  while (2 * block <= order && m.cols % (2 * block) == 0) block *= 2;
  along_rows(m, block, transform_block);
}

float largest_magnitude(std::span<const float> x) {
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

float norm_of(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += double{value} * value;
  return static_cast<float>(std::sqrt(sum));
}

std::vector<double> column_sums(Matrix m) {
  std::vector<double> sums(m.cols);
  parallel_for((m.cols + kColumnsPerTask - 1) / kColumnsPerTask, [&](std::size_t task) {
    const std::size_t last = std::min(m.cols, (task + 1) * kColumnsPerTask);
    for (std::size_t i = 0; i < m.rows; ++i) {
      for (std::size_t j = task * kColumnsPerTask; j < last; ++j) sums[j] += m.at(i, j);
    }
  });
  return sums;
}

void take_columns(Matrix m, std::span<const std::size_t> order) {
  rearrange(m, order, [](auto row, const auto& before, std::size_t j, std::size_t from) { row[j] = before[from]; });
}

void put_columns(Matrix m, std::span<const std::size_t> order) {
  rearrange(m, order, [](auto row, const auto& before, std::size_t j, std::size_t to) { row[to] = before[j]; });
}

}  // namespace oscar::methods
