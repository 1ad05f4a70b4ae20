// SPDX-License-Identifier: MIT
// Scores of some queries with the keys that they see: what libtorch's attention kernels lack (windows, soft caps) and
// what they do not show.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/config/block.hpp"

namespace oscar {

/// Queries [begin, end) of a sequence and the keys [first, end) that one of them sees.
struct ScoreBlock {
  std::int64_t begin, end, first;
  at::Tensor behind;  // (queries, keys), int64: how far the key lies behind the query; negative if it comes after it
  at::Tensor scores;  // (heads, queries, keys), fp32: before the softmax; -inf where the query does not see the key
  at::Tensor slope;   // of scores by q . k / sqrt(d), where scores have a soft cap; else undefined

  /// Rows (heads, T, d) of the queries, and of the keys, in fp32.
  [[nodiscard]] at::Tensor of_queries(const at::Tensor& rows) const {
    return rows.narrow(1, begin, end - begin).to(at::kFloat);
  }
  [[nodiscard]] at::Tensor of_keys(const at::Tensor& rows) const {
    return rows.narrow(1, first, end - first).to(at::kFloat);
  }
  /// The softmax of scores, (heads, queries, keys). sinks: (heads, 1, 1), scores that have no value; undefined: none.
  [[nodiscard]] at::Tensor shares(const at::Tensor& sinks) const;
};

/// How many queries' scores are in memory at a time. q: (heads, T, d).
[[nodiscard]] std::int64_t queries_at_once(const at::Tensor& q);
/// q and k: (heads, T, d).
[[nodiscard]] ScoreBlock score_block(const MixerSpec& mixer, const at::Tensor& q, const at::Tensor& k,
                                     std::int64_t begin, std::int64_t end);

}  // namespace oscar
