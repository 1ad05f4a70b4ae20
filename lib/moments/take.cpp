// SPDX-License-Identifier: MIT
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "moments/sums.hpp"

namespace oscar {
namespace {

using Chunks = std::vector<QkvChunk>;

/// Of q, k and v together.
std::int64_t bytes_per_token(const QkvView& view) {
  return view.q.bytes_per_token() + view.k.bytes_per_token() + view.v.bytes_per_token();
}

/// Returns the size of all rows of a layer.
std::int64_t bytes_of(LayerStream& layer) {
  std::int64_t bytes = 0;
  QkvChunk chunk;
  layer.rewind();
  while (layer.skip(chunk)) {
    for (const SequenceRange& range : chunk.sequences) bytes += range.size() * bytes_per_token(chunk.view);
  }
  return bytes;
}

/// Throws DataError that names the value which spoilt a sum, or NumericalError if there is none.
[[noreturn]] void throw_not_finite(const Chunks& chunks) {
  std::ranges::for_each(chunks, require_finite);
  throw NumericalError("a second moment overflows", chunks.front().where, chunks.front().remedy);
}

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
      if (chunk.view.base_k.num_heads > 0) sums.fisher->take_base(chunk.view.base_q.num_heads > 0);
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

bool all_positive(std::span<const double> values) {
  return std::ranges::all_of(values, [](double v) { return v > 0; });
}

bool is_finite(const MomentSums& sums) { return all_finite(sums.sums.data) && all_finite(sums.total); }

bool is_finite(const AdditiveMoments& sums) {
  return std::ranges::all_of(sums.sums, [](const auto& each) { return is_finite(each.second); }) &&
         (!sums.fisher || (all_finite(sums.fisher->query.data) && all_finite(sums.fisher->weight))) &&
         (!sums.keys || all_finite(sums.keys->sums));
}

/// Reads the layer from its start to its end, once, and returns its sums. zero: sums of nothing, by the shape of a
/// chunk; add_call: the arithmetic of one call of the backend.
template <class Sums, class Zero, class Add>
Sums take_blocks(LayerStream& layer, const WorkShape& shape, const Zero& zero, const Add& add_call) {
  std::optional<Sums> total, block;
  BlockCut cut(shape, bytes_of(layer));
  Chunks waiting;  // for the backend's next call
  const auto call = [&] {
    throw_if_interrupted();
    if (waiting.empty()) return;
    if (!block) block = zero(waiting.front());
    add_call(waiting, *block);
    if (!is_finite(*block)) throw_not_finite(waiting);
    waiting.clear();
  };
  const auto end_block = [&] {
    if (total && block) total->merge(*block);
    if (!total) total = std::move(block);
    block.reset();
  };
  layer.rewind();
  for (QkvChunk chunk; layer.next(chunk); chunk = {}) {
    const BlockCut::End end = cut.after(chunk);
    waiting.push_back(std::move(chunk));
    if (end != BlockCut::End::kNothing) call();
    if (end == BlockCut::End::kBlock) end_block();
  }
  call();
  end_block();
  if (!total) throw DataError("no tokens", "", "dump at least one sequence, or raise --max-tokens");
  return std::move(*total);
}

/// A model computes no head of zeros, nor one whose squares leave float32, in which covariances are kept. Values that
/// have no weight have keys of zeros.
void require_values(const MomentSums& sums, const std::string& rows, LayerStream& layer) {
  const MatrixStack mean = sums.mean();
  for (int head = 0; head < mean.count; ++head) {
    const double total = sums.total[static_cast<std::size_t>(head)];
    const double largest = total > 0 ? std::ranges::max(mean[head]) : 0;
    if (largest >= std::numeric_limits<float>::min() && largest <= std::numeric_limits<float>::max()) continue;
    QkvChunk first;
    layer.rewind();
    (void)layer.skip(first);
    throw DataError((largest > 1 ? "a " : "every ") + (total > 0 ? rows : "k") + " of KV head " + std::to_string(head) +
                        (largest == 0 ? " is zero" : " is so small, or so large, that float32 cannot hold its square"),
                    first.where, first.remedy + std::string(", or leave it out with --layers"));
  }
}

}  // namespace

void require_finite(const QkvChunk& chunk) {
  for (const auto& [what, x] : {std::pair{"q", &chunk.view.q}, {"k", &chunk.view.k}, {"v", &chunk.view.v}}) {
    std::vector<float> row(static_cast<std::size_t>(x->head_dim));
    for (std::int64_t t = 0; t < x->num_tokens; ++t) {
      for (int h = 0; h < x->num_heads; ++h) {
        x->row(t, h, row);
        if (std::ranges::all_of(row, [](float v) { return std::isfinite(v); })) continue;
        throw DataError(what + std::string(" has NaN or Inf"),
                        chunk.where + ", token " + std::to_string(t) + ", head " + std::to_string(h),
                        chunk.remedy + std::string(", or leave the sequence out"));
      }
    }
  }
}

BlockCut::BlockCut(const WorkShape& shape, std::int64_t bytes) {
  const std::int64_t least_calls = std::max<std::int64_t>(1, (bytes - 1) / shape.bytes_per_call + 1);
  const auto calls = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(least_calls)));
  call_bytes_ = end_ = std::max<std::int64_t>(1, bytes / calls);
}

BlockCut::End BlockCut::after(const QkvChunk& chunk) {
  const std::int64_t size = std::max<std::int64_t>(chunk.view.q.num_tokens * bytes_per_token(chunk.view), 1);
  bytes_ += size;
  tokens_ += chunk.view.q.num_tokens;
  const std::int64_t nearest = bytes_ + size / 2;  // with the next chunk, a call would end further from where it should
  if (nearest < end_) return End::kNothing;
  end_ = (nearest / call_bytes_ + 1) * call_bytes_;
  if (tokens_ < kBlockTokens) return End::kCall;
  tokens_ = 0;
  return End::kBlock;
}

AdditiveMoments take(LayerStream& layer, const SumsWanted& wanted, Backend& backend) {
  if (wanted.moments.empty()) return {};
  const auto zero = [&](const QkvChunk& chunk) { return nothing_of(chunk, wanted); };
  const auto add_call = [&](const Chunks& chunks, AdditiveMoments& sums) {
    add(chunks, wanted.windows, backend, sums);
  };
  AdditiveMoments total = take_blocks<AdditiveMoments>(layer, backend.work_shape(), zero, add_call);
  for (const auto& [moment, sums] : total.sums) {
    require_values(sums, moment == Moment::kQqt ? "q" : moment == Moment::kKtk ? "k" : "v", layer);
  }
  if (total.fisher && all_positive(total.fisher->weight)) {  // else there is no history
    require_values({total.fisher->key, total.fisher->weight}, "k", layer);
  }
  return total;
}

MomentSums take(LayerStream& layer, Moment moment, Backend& backend) {
  return std::move(take(layer, SumsWanted{.moments = {moment}, .windows = {}}, backend).sums.at(moment));
}

MomentSums take_sst(LayerStream& layer, const MatrixStack& query_covariance, Backend& backend) {
  const auto zero = [](const QkvChunk& chunk) { return nothing_of(chunk, &QkvView::v); };
  const auto add_call = [&](const Chunks& chunks, MomentSums& moments) {
    backend.accumulate_weighted_grams(views_of(chunks, &QkvView::k), query_covariance, views_of(chunks, &QkvView::v),
                                      moments.sums, moments.total);
  };
  MomentSums sums = take_blocks<MomentSums>(layer, backend.work_shape(), zero, add_call);
  require_values(sums, "v", layer);
  return sums;
}

}  // namespace oscar
