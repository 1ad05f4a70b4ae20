// SPDX-License-Identifier: MIT
// How the sums over a layer come about where several processes share its text: each process sums its own blocks, and
// blocks are added in the order of the text, as one process adds them. For moments/ only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "dump/text_share.hpp"
#include "moments/sums.hpp"

namespace oscar {

/// Returns to all processes the sum over the blocks of all of them; empty if there is no block. own: the numbers of
/// this process's blocks, one block behind the other; count: how many numbers a block has.
[[nodiscard]] std::vector<double> sum_of_blocks(const std::vector<double>& own, std::size_t count, SharedLayer& shared);

inline std::vector<std::span<double>> numbers_of(MomentSums& sums) { return {sums.sums.data, sums.total}; }
inline std::vector<std::span<double>> numbers_of(KeySums& sums) { return {sums.sums, {&sums.tokens, 1}}; }
inline std::vector<std::span<double>> numbers_of(FisherSums& sums) {
  return {sums.query.data, sums.key.data, sums.key_sum, sums.weight, sums.value.data};
}

/// Returns the sum over the blocks of all processes. nothing: sums of no blocks.
template <class Sums>
std::optional<Sums> sum_of_all(std::vector<Sums>& own_blocks, Sums nothing, SharedLayer& shared) {
  std::vector<double> own;
  for (Sums& block : own_blocks) {
    for (const std::span<double> part : numbers_of(block)) own.insert(own.end(), part.begin(), part.end());
  }
  std::size_t count = 0;
  for (const std::span<double> part : numbers_of(nothing)) count += part.size();
  const std::vector<double> sum = sum_of_blocks(own, count, shared);
  if (sum.empty()) return std::nullopt;
  auto next = sum.begin();
  for (const std::span<double> part : numbers_of(nothing)) {
    std::copy_n(next, part.size(), part.begin());
    next += std::ssize(part);
  }
  return nothing;
}

}  // namespace oscar
