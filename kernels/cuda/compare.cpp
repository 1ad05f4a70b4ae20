// SPDX-License-Identifier: MIT
// compare(): passes over candidates and KV heads, and in each of them blocks of queries.
#include <algorithm>

#include "base/status.hpp"
#include "kernels/cuda/compare_pass.hpp"

namespace oscar::cuda {
namespace {

/// Bytes of rows, and again of scores: 96 MiB, less where memory has been short. Two lanes of a fit compare sequences.
std::size_t pass_budget(const Context& context) { return 3 * context.device().chunk_bytes(); }

}  // namespace

std::vector<std::vector<AttentionErrors>> compare(const Context& context, const HeldData& held,
                                                  std::span<const HistoryCodecs> candidates, Windows windows) {
  const auto heads = static_cast<std::size_t>(held.k.kv_heads() * held.q.heads_per_kv_head());
  std::vector errors(candidates.size(), std::vector<AttentionErrors>(heads));
  const std::int64_t queries = held.q.tokens();
  if (queries == 0) return errors;
  const CompareShape shape{.kv_heads = held.k.kv_heads(),
                           .g = held.q.heads_per_kv_head(),
                           .queries = queries,
                           .keys = held.host_positions.back() + 1,
                           .key_dim = held.k.dim(),
                           .value_dim = held.v.dim()};
  for (const ComparePass& pass : compare_passes(shape, candidates, pass_budget(context))) {
    ComparePassRun run(context, held, candidates.subspan(pass.first_candidate, pass.candidates), windows, pass);
    for (std::int64_t first = 0; first < queries; first += pass.block) {
      throw_if_interrupted();
      run.run(first, std::min(pass.block, queries - first));
    }
    run.add_to(std::span(errors).subspan(pass.first_candidate, pass.candidates));
  }
  return errors;
}

}  // namespace oscar::cuda
