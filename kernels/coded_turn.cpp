// SPDX-License-Identifier: MIT
#include "kernels/coded_turn.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace oscar {
namespace {

/// One pair of a head. basis, inverse: of the head; used: which coordinates other pairs have.
CodedTurnPair pair_of(const std::int32_t* channels, const float* basis, const float* inverse, int dim,
                      std::vector<bool>& used) {
  CodedTurnPair pair{};
  int found = 0;
  for (int c = 0; c < dim; ++c) {
    bool is_of_pair = false;
    for (int i = 0; i < 2; ++i) is_of_pair |= inverse[c * dim + channels[i]] != 0;
    if (!is_of_pair) continue;
    if (found == 2 || used[static_cast<std::size_t>(c)]) {
      throw std::invalid_argument("the basis mixes channels of different pairs: no row can be turned pair by pair");
    }
    used[static_cast<std::size_t>(c)] = true;
    for (int i = 0; i < 2; ++i) {
      pair.basis[i][found] = basis[channels[i] * dim + c];
      pair.inverse[found][i] = inverse[c * dim + channels[i]];
    }
    pair.coordinate[found++] = static_cast<std::int16_t>(c);
  }
  if (found != 2) throw std::invalid_argument("a pair of channels has fewer than two coordinates");
  for (int i = 0; i < 2; ++i) pair.channel[i] = static_cast<std::int16_t>(channels[i]);
  return pair;
}

void require_pairs(const oscar_coded_turn& turn) {
  std::vector<bool> seen(static_cast<std::size_t>(turn.head_dim));
  for (int i = 0; i < turn.head_dim; ++i) {
    const std::int32_t channel = turn.pairs[i];
    if (channel < 0 || channel >= turn.head_dim || seen[static_cast<std::size_t>(channel)]) {
      throw std::invalid_argument("pairs must have every channel once");
    }
    seen[static_cast<std::size_t>(channel)] = true;
  }
}

}  // namespace

std::vector<CodedTurnPair> coded_turn_pairs(const oscar_coded_turn& turn) {
  if (turn.head_dim < 2 || turn.head_dim % 2 != 0 || turn.head_dim > 1024 || turn.num_kv_heads < 1) {
    throw std::invalid_argument("head_dim must be even, up to 1024, and num_kv_heads positive");
  }
  require_pairs(turn);
  const int dim = turn.head_dim;
  std::vector<CodedTurnPair> pairs;
  for (int head = 0; head < turn.num_kv_heads; ++head) {
    std::vector<bool> used(static_cast<std::size_t>(dim));
    const std::ptrdiff_t matrix = std::ptrdiff_t{head} * dim * dim;
    for (int p = 0; p < dim / 2; ++p) {
      CodedTurnPair pair = pair_of(turn.pairs + 2 * p, turn.basis + matrix, turn.inverse + matrix, dim, used);
      pair.frequency[0] = turn.frequency[p];
      pair.frequency[1] = turn.far_frequency == nullptr ? turn.frequency[p] : turn.far_frequency[p];
      for (int i = 0; i < 2 && turn.mean != nullptr; ++i) pair.mean[i] = turn.mean[head * dim + pair.channel[i]];
      if (!std::isfinite(pair.frequency[0]) || !std::isfinite(pair.frequency[1])) {
        throw std::invalid_argument("frequencies must be finite");
      }
      pair.is_fast = is_fast(pair.frequency[0], pair.frequency[1]) ? 1 : 0;
      pairs.push_back(pair);
    }
    std::stable_partition(pairs.end() - dim / 2, pairs.end(),
                          [](const CodedTurnPair& pair) { return pair.is_fast != 0; });
  }
  return pairs;
}

}  // namespace oscar
