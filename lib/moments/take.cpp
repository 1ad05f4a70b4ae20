// SPDX-License-Identifier: MIT
#include "moments/take.hpp"

#include <algorithm>
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

/// Sums of nothing in matrices of the size of keys, or of values, one a KV head.
BlockwiseSum<MomentSums>::Zero nothing_of(Rows rows) {
  return [rows](const QkvChunk& chunk) {
    const int heads = chunk.view.k.num_heads;
    return MomentSums{MatrixStack(heads, (chunk.view.*rows).head_dim),
                      std::vector<double>(static_cast<std::size_t>(heads))};
  };
}

void count_rows(const Chunks& chunks, bool queries, MomentSums& moments) {
  for (const QkvChunk& chunk : chunks) {
    const std::int64_t per_token = queries ? chunk.view.q.num_heads / chunk.view.k.num_heads : 1;
    for (double& total : moments.total) total += static_cast<double>(chunk.view.q.num_tokens * per_token);
  }
}

/// Sums of x^T x of queries, keys or values.
BlockwiseSum<MomentSums> plain_sum(Rows rows, Backend& backend) {
  return {nothing_of(rows), [rows, &backend](const Chunks& chunks, MomentSums& moments) {
            backend.accumulate_grams(views_of(chunks, rows), moments.sums);
            count_rows(chunks, rows == &QkvView::q, moments);
          }};
}

BlockwiseSum<FisherSums> fisher_sum(const SumsWanted& wanted, Backend& backend) {
  const auto zero = [values = wanted.value_reads](const QkvChunk& chunk) {
    FisherSums sums(chunk.view.k.num_heads, chunk.view.k.head_dim);
    if (values) sums.value = MatrixStack(chunk.view.v.num_heads, chunk.view.v.head_dim);
    return sums;
  };
  return {zero, [windows = wanted.windows, &backend](const Chunks& chunks, FisherSums& sums) {
            for (const QkvChunk& chunk : chunks) {
              backend.accumulate_fisher_sums(chunk.view, chunk.sequences, windows, sums);
            }
          }};
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

BlockwiseSum<KeySums> key_sum() {
  const auto zero = [](const QkvChunk& chunk) {
    return KeySums{std::vector<double>(static_cast<std::size_t>(chunk.view.k.num_heads * chunk.view.k.head_dim)), 0};
  };
  return {zero, [](const Chunks& chunks, KeySums& keys) {
            for (const QkvChunk& chunk : chunks) add_keys(chunk.view.k, keys);
          }};
}

/// A model computes no layer of zeros: the rows were lost before they came here.
void require_values(const MomentSums& moments, Moment moment, LayerStream& layer) {
  const auto& values = moments.sums.data;
  if (std::ranges::any_of(values, [](double v) { return v != 0; })) return;
  QkvChunk first;
  layer.rewind();
  (void)layer.skip(first);
  const char* const rows = moment == Moment::kQqt ? "q" : moment == Moment::kKtk ? "k" : "v";
  throw DataError(std::string("every ") + rows + " of this layer is zero", first.where,
                  "look at how it was dumped, and dump this layer again");
}

/// All sums of one part that are wanted.
class SumsOfPart {
 public:
  SumsOfPart(const SumsWanted& wanted, Backend& backend) {
    const auto takes = [&](Moment moment) { return wanted.moments.contains(moment); };
    for (const Moment other : {Moment::kFisherKey, Moment::kSst}) {
      OSCAR_CHECK(!takes(other));  // rows alone do not give it
    }
    if (takes(Moment::kKtk)) squares_.emplace(Moment::kKtk, plain_sum(&QkvView::k, backend));
    if (takes(Moment::kQqt)) squares_.emplace(Moment::kQqt, plain_sum(&QkvView::q, backend));
    if (takes(Moment::kVtv)) squares_.emplace(Moment::kVtv, plain_sum(&QkvView::v, backend));
    if (takes(Moment::kFisher)) fisher_.emplace(fisher_sum(wanted, backend));
    if (takes(Moment::kKeys)) keys_.emplace(key_sum());
  }

  [[nodiscard]] std::vector<RunningSum*> running() {
    std::vector<RunningSum*> all;
    for (auto& [moment, sum] : squares_) all.push_back(&sum);
    if (fisher_) all.push_back(&*fisher_);
    if (keys_) all.push_back(&*keys_);
    return all;
  }

  [[nodiscard]] AdditiveMoments totals(LayerStream& layer) {
    AdditiveMoments out;
    for (auto& [moment, sum] : squares_) {
      out.sums.emplace(moment, sum.total());
      require_values(out.sums.at(moment), moment, layer);
    }
    if (fisher_) out.fisher = fisher_->total();
    if (keys_) out.keys = keys_->total();
    return out;
  }

 private:
  std::map<Moment, BlockwiseSum<MomentSums>> squares_;
  std::optional<BlockwiseSum<FisherSums>> fisher_;
  std::optional<BlockwiseSum<KeySums>> keys_;
};

}  // namespace

std::vector<AdditiveMoments> take(LayerStream& layer, std::span<const TakesSequence> parts, const SumsWanted& wanted,
                                  Backend& backend) {
  std::vector<SumsOfPart> sums(parts.size(), SumsOfPart(wanted, backend));
  std::vector<WalkPart> walking;
  for (std::size_t i = 0; i < parts.size(); ++i) walking.push_back({parts[i], sums[i].running()});
  if (!wanted.moments.empty()) walk(layer, walking, backend.work_shape());
  std::vector<AdditiveMoments> totals;
  for (SumsOfPart& each : sums) totals.push_back(each.totals(layer));
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
  std::vector<BlockwiseSum<MomentSums>> sums;
  for (const ScoreWeighting& part : parts) {
    sums.emplace_back(nothing_of(&QkvView::v), [&backend, &part](const Chunks& chunks, MomentSums& moments) {
      backend.accumulate_weighted_grams(views_of(chunks, &QkvView::k), *part.query_covariance,
                                        views_of(chunks, &QkvView::v), moments.sums, moments.total);
    });
  }
  std::vector<WalkPart> walking;
  for (std::size_t i = 0; i < parts.size(); ++i) walking.push_back({parts[i].takes, {&sums[i]}});
  walk(layer, walking, backend.work_shape());
  std::vector<MomentSums> totals;
  for (BlockwiseSum<MomentSums>& sum : sums) totals.push_back(sum.total());
  return totals;
}

MomentSums take_sst(LayerStream& layer, const MatrixStack& query_covariance, Backend& backend) {
  const ScoreWeighting whole{&query_covariance};
  return std::move(take_sst(layer, std::span(&whole, 1), backend).front());
}

}  // namespace oscar
