// SPDX-License-Identifier: MIT
#include "kernels/cuda/compare_plan.hpp"

#include <algorithm>

namespace oscar::cuda {
namespace {

/// Candidates whose codecs one launch takes.
constexpr std::size_t kMaxCandidates = 64;

std::span<const HistoryCodecs> group_at(std::span<const HistoryCodecs> candidates, std::size_t first,
                                        std::size_t size) {
  return candidates.subspan(first, std::min(size, candidates.size() - first));
}

bool fits(const CompareShape& shape, std::span<const HistoryCodecs> candidates, std::size_t size, int heads,
          std::size_t budget) {
  for (std::size_t first = 0; first < candidates.size(); first += size) {
    const PassBytes bytes = bytes_of_pass(shape, group_at(candidates, first, size), heads);
    if (bytes.rows > budget || bytes.per_query > budget) return false;
  }
  return true;
}

}  // namespace

PassBytes bytes_of_pass(const CompareShape& shape, std::span<const HistoryCodecs> candidates, int heads) {
  const CodecChoice keys = choose_codecs(candidates, &HistoryCodecs::key);
  const CodecChoice values = choose_codecs(candidates, &HistoryCodecs::value);
  const auto per_head = [heads](std::size_t doubles) { return static_cast<std::size_t>(heads) * doubles * 8; };
  const auto length = static_cast<std::size_t>(shape.keys);
  const auto key_dim = static_cast<std::size_t>(shape.key_dim);
  const auto value_dim = static_cast<std::size_t>(shape.value_dim);
  // Rows: native, stored, decoded. Queries: native and stored, exact scores and probabilities, scores with the window,
  // scores and a second buffer of weights for each codec, outputs before and after they are mapped back.
  return {per_head(length * ((2 + keys.decoding()) * key_dim + (2 + values.decoding()) * value_dim)),
          per_head(static_cast<std::size_t>(shape.g) *
                   (2 * key_dim + length * (3 + 2 * keys.codecs.size()) + value_dim * (1 + 2 * candidates.size())))};
}

std::vector<ComparePass> compare_passes(const CompareShape& shape, std::span<const HistoryCodecs> candidates,
                                        std::size_t budget) {
  int heads = shape.kv_heads;
  std::size_t size = std::min(candidates.size(), kMaxCandidates);
  while (heads > 1 && !fits(shape, candidates, size, heads, budget)) heads = (heads + 1) / 2;
  while (size > 1 && !fits(shape, candidates, size, heads, budget)) size = (size + 1) / 2;
  std::vector<ComparePass> passes;
  for (std::size_t first = 0; first < candidates.size(); first += size) {
    const std::span<const HistoryCodecs> group = group_at(candidates, first, size);
    for (int head = 0; head < shape.kv_heads; head += heads) {
      const int count = std::min(heads, shape.kv_heads - head);
      const auto block = static_cast<std::int64_t>(budget / bytes_of_pass(shape, group, count).per_query);
      passes.push_back({first, group.size(), head, count,
                        std::clamp<std::int64_t>(block, 1, std::max<std::int64_t>(shape.queries, 1))});
    }
  }
  return passes;
}

}  // namespace oscar::cuda
