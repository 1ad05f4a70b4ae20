// SPDX-License-Identifier: MIT
#include "moments/take.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"
#include "moments/walk.hpp"

namespace oscar {
namespace {

using Rows = HeadsView QkvView::*;

std::vector<HeadsView> views_of(const Chunks& chunks, Rows rows) {
  std::vector<HeadsView> views;
  for (const QkvChunk& chunk : chunks) views.push_back(chunk.view.*rows);
  return views;
}

/// The rows that a plain second moment is of.
Rows rows_of(Moment moment) {
  return moment == Moment::kQqt ? &QkvView::q : moment == Moment::kKtk ? &QkvView::k : &QkvView::v;
}

/// Sums of nothing in matrices of the size of some rows, one a KV head.
MomentSums nothing_of(const QkvChunk& chunk, Rows rows) {
  const int heads = chunk.view.k.num_heads;
  return {MatrixStack(heads, (chunk.view.*rows).head_dim), std::vector<double>(static_cast<std::size_t>(heads))};
}

AdditiveMoments nothing_of(const QkvChunk& chunk, const SumsWanted& wanted) {
  const HeadsView &k = chunk.view.k, &v = chunk.view.v;
  AdditiveMoments sums;
  for (const Moment moment : wanted.moments) {
    if (moment == Moment::kSst) continue;
    if (moment == Moment::kFisher) {
      sums.fisher.emplace(k.num_heads, k.head_dim);
      if (wanted.value_reads) sums.fisher->value = MatrixStack(v.num_heads, v.head_dim);
    } else if (moment == Moment::kKeys) {
      sums.keys = KeySums{std::vector<double>(static_cast<std::size_t>(k.num_heads * k.head_dim)), 0};
    } else {
      OSCAR_CHECK(moment == Moment::kKtk || moment == Moment::kQqt || moment == Moment::kVtv);  // rows alone give it
      sums.sums.emplace(moment, nothing_of(chunk, rows_of(moment)));
    }
  }
  return sums;
}

void add_keys(const HeadsView& k, KeySums& keys) {
  const auto dim = static_cast<std::size_t>(k.head_dim);
  parallel_for(static_cast<std::size_t>(k.num_heads), [&](std::size_t head) {
    std::vector<double> rows(static_cast<std::size_t>(k.num_tokens) * dim);
    k.head_rows(0, k.num_tokens, static_cast<int>(head), rows.data());
    for (std::size_t i = 0; i < rows.size(); ++i) keys.sums[head * dim + i % dim] += rows[i];
  });
  keys.tokens += static_cast<double>(k.num_tokens);
}

/// One call of the backend for each sum.
void add(const Chunks& chunks, Windows windows, Backend& backend, AdditiveMoments& out) {
  for (auto& [moment, moments] : out.sums) {
    backend.accumulate_grams(views_of(chunks, rows_of(moment)), moments.sums);
    for (const QkvChunk& chunk : chunks) {
      const std::int64_t per_token = moment == Moment::kQqt ? chunk.view.q.num_heads / chunk.view.k.num_heads : 1;
      for (double& total : moments.total) total += static_cast<double>(chunk.view.q.num_tokens * per_token);
    }
  }
  for (const QkvChunk& chunk : chunks) {
    if (out.fisher) backend.accumulate_fisher_sums(chunk.view, chunk.sequences, windows, *out.fisher);
    if (out.keys) add_keys(chunk.view.k, *out.keys);
  }
}

bool all_finite(std::span<const double> values) {
  return std::ranges::all_of(values, [](double v) { return std::isfinite(v); });
}

bool is_finite(const MomentSums& sums) { return all_finite(sums.sums.data) && all_finite(sums.total); }

bool is_finite(const AdditiveMoments& sums) {
  return std::ranges::all_of(sums.sums, [](const auto& each) { return is_finite(each.second); }) &&
         (!sums.fisher || (all_finite(sums.fisher->query.data) && all_finite(sums.fisher->weight))) &&
         (!sums.keys || all_finite(sums.keys->sums));
}

/// Returns the sums of each part. zero: sums of nothing, by the shape of a chunk; add_call: the arithmetic of one call
/// of the backend for a part.
template <class Sums, class Zero, class Add>
std::vector<Sums> take_blocks(LayerStream& layer, std::span<const TakesSequence> parts, const WorkShape& shape,
                              const Zero& zero, const Add& add_call) {
  struct Running {
    std::optional<Sums> total, block;
  };
  std::vector<Running> running(parts.size());
  const auto add_to_block = [&](std::size_t part, const Chunks& chunks) {
    std::optional<Sums>& block = running[part].block;
    if (!block) block = zero(chunks.front());
    add_call(part, chunks, *block);
    if (!is_finite(*block)) throw_not_finite(chunks);
  };
  const auto end_block = [&](std::size_t part) {
    auto& [total, block] = running[part];
    if (total && block) total->merge(*block);
    if (!total) total = std::move(block);
    block.reset();
  };
  walk(layer, parts, shape, add_to_block, end_block);
  std::vector<Sums> totals;
  for (Running& each : running) {
    if (!each.total) throw DataError("no tokens", "", "dump at least one sequence, or raise --max-tokens");
    totals.push_back(std::move(*each.total));
  }
  return totals;
}

/// A model computes no layer of zeros: the rows were lost before they came here.
void require_values(const AdditiveMoments& moments, LayerStream& layer) {
  for (const auto& [moment, sums] : moments.sums) {
    if (std::ranges::any_of(sums.sums.data, [](double v) { return v != 0; })) continue;
    QkvChunk first;
    layer.rewind();
    (void)layer.skip(first);
    const char* const rows = moment == Moment::kQqt ? "q" : moment == Moment::kKtk ? "k" : "v";
    throw DataError(std::string("every ") + rows + " of this layer is zero", first.where,
                    "look at how it was dumped, and dump this layer again");
  }
}

}  // namespace

std::vector<AdditiveMoments> take(LayerStream& layer, std::span<const TakesSequence> parts, const SumsWanted& wanted,
                                  Backend& backend) {
  if (wanted.moments.empty()) return std::vector<AdditiveMoments>(parts.size());
  const auto zero = [&](const QkvChunk& chunk) { return nothing_of(chunk, wanted); };
  const auto add_call = [&](std::size_t, const Chunks& chunks, AdditiveMoments& sums) {
    add(chunks, wanted.windows, backend, sums);
  };
  auto totals = take_blocks<AdditiveMoments>(layer, parts, backend.work_shape(), zero, add_call);
  for (const AdditiveMoments& each : totals) require_values(each, layer);
  return totals;
}

AdditiveMoments take(LayerStream& layer, const SumsWanted& wanted, Backend& backend) {
  const TakesSequence all;
  return std::move(take(layer, std::span(&all, 1), wanted, backend).front());
}

MomentSums take(LayerStream& layer, Moment moment, Backend& backend) {
  return std::move(take(layer, SumsWanted{.moments = {moment}, .windows = {}}, backend).sums.at(moment));
}

std::vector<MomentSums> take_sst(LayerStream& layer, std::span<const ScoreWeighting> parts, Backend& backend) {
  std::vector<TakesSequence> takes;
  for (const ScoreWeighting& part : parts) takes.push_back(part.takes);
  const auto zero = [](const QkvChunk& chunk) { return nothing_of(chunk, &QkvView::v); };
  const auto add_call = [&](std::size_t part, const Chunks& chunks, MomentSums& moments) {
    backend.accumulate_weighted_grams(views_of(chunks, &QkvView::k), *parts[part].query_covariance,
                                      views_of(chunks, &QkvView::v), moments.sums, moments.total);
  };
  return take_blocks<MomentSums>(layer, takes, backend.work_shape(), zero, add_call);
}

MomentSums take_sst(LayerStream& layer, const MatrixStack& query_covariance, Backend& backend) {
  const ScoreWeighting whole{&query_covariance};
  return std::move(take_sst(layer, std::span(&whole, 1), backend).front());
}

}  // namespace oscar
