// SPDX-License-Identifier: MIT
// KIVI (arXiv 2402.02750): keys per channel over groups of G tokens, values per token over groups of G channels,
// q = even((x - min) / s), s and min fp16. Kitty (arXiv 2511.18643): KIVI's axes with G = 128; on each page of 128
// tokens the channels of a head with the largest mean |k| get 4 bits.
// Engines leave up to a group of keys unquantised; here the last group of a history is quantised at the length it has.
#include <cmath>

#include "measure/peers/baselines.hpp"
#include "measure/peers/quantizers.hpp"

namespace oscar::methods {
namespace {

constexpr std::size_t kPage = 128;

constexpr double kBoosted = 0.125;  // of the channels

Peer kivi(int group) {
  return {.name = "kivi_g" + std::to_string(group),
          .description = "KIVI-2, groups of " + std::to_string(group),
          .windows = {0, 128},
          .key = affine_by_channel({}, group),
          .value = affine_by_token({}, group)};
}

std::size_t boosted_channels(int dim) { return static_cast<std::size_t>(dim * kBoosted + 1e-6); }

/// Of the values below each other in columns [begin, end): the columns with the largest sums of magnitudes.
std::vector<std::size_t> largest_columns(Matrix m, std::size_t begin, std::size_t end, std::size_t count) {
  std::vector<double> sums(end - begin);
  for (std::size_t i = 0; i < m.rows; ++i) {
    for (std::size_t j = begin; j < end; ++j) sums[j - begin] -= std::abs(m.at(i, j));
  }
  std::vector<std::size_t> order = sorted_order(sums);
  order.resize(count);
  return order;
}

void boost_page(Matrix page, std::size_t dim) {
  constexpr float kSmallestRange = 1e-4F;
  std::vector<int> levels(page.cols, 4);
  for (std::size_t head = 0; head < page.cols; head += dim) {
    for (const std::size_t j : largest_columns(page, head, head + dim, boosted_channels(static_cast<int>(dim)))) {
      levels[head + j] = 16;
    }
  }
  along_columns(page, page.rows, [&](std::span<float> values, std::size_t j) {
    Affine{.levels = levels[j], .smallest_scale = kSmallestRange / static_cast<float>(levels[j] - 1)}(values);
  });
}

void quantize_kitty(const History& history) {
  const Matrix all = by_token(history);
  parallel_for((all.rows + kPage - 1) / kPage, [&](std::size_t page) {
    const std::size_t begin = page * kPage, rows = std::min(kPage, all.rows - begin);
    boost_page({all.data.subspan(begin * all.cols, rows * all.cols), rows, all.cols},
               static_cast<std::size_t>(history.dim));
  });
}

/// A page also stores a byte for each channel: where it went.
StoredBits kitty_bits(const KvShape& shape) {
  const auto boosted = static_cast<double>(boosted_channels(shape.head_dim));
  return {2 + 2 * boosted / shape.head_dim + 8.0 / kPage, 2.0 / kPage};
}

}  // namespace

std::vector<Peer> kivi_methods() {
  return {kivi(32),
          kivi(128),
          {.name = "kitty",
           .description = "Kitty: KIVI-2 with groups of 128, 12.5 % of the key channels at 4 bits",
           .windows = {32, 128},
           .key = {quantize_kitty, kitty_bits},
           .value = affine_by_token({.smallest_scale = 1e-4F / 3}, 128)}};
}

}  // namespace oscar::methods
