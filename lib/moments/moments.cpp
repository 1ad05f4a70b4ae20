// SPDX-License-Identifier: MIT
#include "moments/moments.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"
#include "moments/blocks.hpp"
#include "moments/shared_sums.hpp"

namespace oscar {
namespace {

const HeadsView& rows_of(const QkvChunk& chunk, Side side) {
  return side == Side::kValue ? chunk.view.v : chunk.view.k;
}

bool all_finite(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

/// Finds the value that spoilt a sum.
void throw_if_not_finite(HeadsView x, const char* what, const QkvChunk& chunk) {
  std::vector<float> row(static_cast<std::size_t>(x.head_dim));
  for (std::int64_t t = 0; t < x.num_tokens; ++t) {
    for (int h = 0; h < x.num_heads; ++h) {
      x.row(t, h, row);
      if (std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); })) continue;
      throw DataError(std::string(what) + " has NaN or Inf",
                      chunk.where + ", token " + std::to_string(t) + ", head " + std::to_string(h),
                      "dump this layer again, or leave the sequence out");
    }
  }
}

using Chunks = std::vector<QkvChunk>;

std::vector<HeadsView> views_of(const Chunks& chunks, HeadsView QkvView::*rows) {
  std::vector<HeadsView> views;
  for (const QkvChunk& chunk : chunks) views.push_back(chunk.view.*rows);
  return views;
}

bool is_finite(const MomentSums& sums) { return all_finite(sums.sums.data) && all_finite(sums.total); }
bool is_finite(const FisherSums& sums) { return all_finite(sums.query.data) && all_finite(sums.weight); }
bool is_finite(const KeySums& sums) { return all_finite(sums.sums); }

[[noreturn]] void throw_not_finite(const Chunks& chunks) {
  for (const QkvChunk& chunk : chunks) {
    throw_if_not_finite(chunk.view.q, "q", chunk);
    throw_if_not_finite(chunk.view.k, "k", chunk);
    throw_if_not_finite(chunk.view.v, "v", chunk);
  }
  throw NumericalError("a second moment overflows", chunks.front().where, "check the scale of the dumped values");
}

void add_block(MomentSums& total, const MomentSums& block) { total.merge(block); }
void add_block(KeySums& total, const KeySums& block) { total.merge(block); }
void add_block(FisherSums& total, const FisherSums& block) { merge(total, block); }

/// Reads the whole stream block by block, or those blocks of a shared one that this process has. zero(chunk): sums of
/// nothing; add(chunks, sums) does the arithmetic of one call.
template <class Zero, class Add>
auto sum_blocks(LayerStream& layer, Backend& backend, const Zero& zero, const Add& add) {
  using Sums = decltype(zero(QkvChunk()));
  std::vector<Sums> blocks;  // all of them added up in one, unless the text is shared
  std::optional<Sums> nothing, block;
  const auto end_block = [&] {
    if (!block) return;
    if (blocks.empty() || layer.shared() != nullptr) {
      blocks.push_back(std::move(*block));
    } else {
      add_block(blocks.back(), *block);
    }
    block.reset();
  };
  layer.rewind();
  BlockCut cut(backend.work_shape());
  for (Call call = next_call(layer, cut); !call.chunks.empty(); call = next_call(layer, cut)) {
    throw_if_interrupted();
    if (!nothing) nothing = zero(call.chunks.front());
    if (!call.chunks.front().here) continue;  // whole blocks are another process's
    if (!block) block = *nothing;
    add(call.chunks, *block);
    if (!is_finite(*block)) throw_not_finite(call.chunks);
    if (call.ends_block) end_block();
  }
  end_block();
  std::optional<Sums> total;
  if (SharedLayer* const shared = layer.shared(); shared != nullptr && nothing) {
    total = sum_of_all(blocks, *nothing, *shared);
  } else if (!blocks.empty()) {
    total = std::move(blocks.front());
  }
  if (!total) throw DataError("no tokens", "", "dump at least one sequence, or raise --max-tokens");
  return std::move(*total);
}

template <class Add>
MomentSums accumulate(LayerStream& layer, Side side, Backend& backend, const Add& add) {
  const auto zero = [side](const QkvChunk& chunk) {
    const HeadsView& rows = rows_of(chunk, side);
    return MomentSums{MatrixStack(rows.num_heads, rows.head_dim),
                      std::vector<double>(static_cast<std::size_t>(rows.num_heads))};
  };
  return sum_blocks(layer, backend, zero, add);
}

/// A model computes no layer of zeros: the rows were lost before they came here.
void require_values(const MomentSums& moments, const char* what, LayerStream& layer) {
  const auto& values = moments.sums.data;
  if (std::any_of(values.begin(), values.end(), [](double v) { return v != 0; })) return;
  QkvChunk first;
  layer.rewind();
  (void)layer.skip(first);
  throw DataError(std::string("every ") + what + " of this layer is zero", first.where,
                  "look at how it was dumped, and dump this layer again");
}

void count_rows(const Chunks& chunks, bool queries, MomentSums& moments) {
  for (const QkvChunk& chunk : chunks) {
    const std::int64_t per_token = queries ? chunk.view.q.num_heads / chunk.view.k.num_heads : 1;
    for (double& total : moments.total) total += static_cast<double>(chunk.view.q.num_tokens * per_token);
  }
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

void add_to(std::vector<double>& sums, const std::vector<double>& other) {
  OSCAR_CHECK(sums.size() == other.size());
  std::transform(sums.begin(), sums.end(), other.begin(), sums.begin(), std::plus<>());
}

}  // namespace

void MomentSums::merge(const MomentSums& other) {
  if (sums.count != other.sums.count || sums.dim != other.sums.dim) {
    throw DataError("moments of different shape cannot be merged", "", "merge statistics of the same model only");
  }
  add_to(sums.data, other.sums.data);
  add_to(total, other.total);
}

MatrixStack MomentSums::mean() const {
  MatrixStack out = sums;
  for (int h = 0; h < out.count; ++h) {
    for (double& value : out[h]) value /= std::max(total[static_cast<std::size_t>(h)], 1e-12);
  }
  return out;
}

MomentSums query_moments(LayerStream& layer, Backend& backend) {
  MomentSums sums = accumulate(layer, Side::kKey, backend, [&](const Chunks& chunks, MomentSums& moments) {
    backend.accumulate_grams(views_of(chunks, &QkvView::q), moments.sums);
    count_rows(chunks, true, moments);
  });
  require_values(sums, "q", layer);
  return sums;
}

MomentSums plain_moments(LayerStream& layer, Side side, Backend& backend) {
  MomentSums sums = accumulate(layer, side, backend, [&](const Chunks& chunks, MomentSums& moments) {
    backend.accumulate_grams(views_of(chunks, side == Side::kValue ? &QkvView::v : &QkvView::k), moments.sums);
    count_rows(chunks, false, moments);
  });
  require_values(sums, side == Side::kValue ? "v" : "k", layer);
  return sums;
}

MomentSums score_weighted_value_moments(LayerStream& layer, const MatrixStack& query_covariance, Backend& backend) {
  return accumulate(layer, Side::kValue, backend, [&](const Chunks& chunks, MomentSums& moments) {
    backend.accumulate_weighted_grams(views_of(chunks, &QkvView::k), query_covariance, views_of(chunks, &QkvView::v),
                                      moments.sums, moments.total);
  });
}

MomentSums output_moments(LayerStream& layer, Backend& backend) {
  return accumulate(layer, Side::kValue, backend, [&](const Chunks& chunks, MomentSums& moments) {
    for (const QkvChunk& chunk : chunks) backend.accumulate_output_grams(chunk.view, chunk.sequences, moments.sums);
    count_rows(chunks, true, moments);
  });
}

FisherSums fisher_sums(LayerStream& layer, Windows windows, Backend& backend, ValueReads values) {
  const auto zero = [&](const QkvChunk& chunk) {
    FisherSums sums(chunk.view.k.num_heads, chunk.view.k.head_dim);
    if (values == ValueReads::kTaken) sums.value = MatrixStack(chunk.view.v.num_heads, chunk.view.v.head_dim);
    return sums;
  };
  return sum_blocks(layer, backend, zero, [&](const Chunks& chunks, FisherSums& sums) {
    for (const QkvChunk& chunk : chunks) backend.accumulate_fisher_sums(chunk.view, chunk.sequences, windows, sums);
  });
}

void merge(FisherSums& sums, const FisherSums& other) {
  add_to(sums.query.data, other.query.data);
  add_to(sums.key.data, other.key.data);
  add_to(sums.key_sum, other.key_sum);
  add_to(sums.weight, other.weight);
  add_to(sums.value.data, other.value.data);
}

FisherMoments mean(const FisherSums& sums, Windows windows) {
  for (const double weight : sums.weight) {
    if (weight > 0) continue;
    throw DataError("no sequence is longer than the windows, so the fisher objective has no history to weigh", "",
                    "calibrate on sequences of more than " + std::to_string(windows.sink + windows.recent) +
                        " tokens, or use another --key-objective");
  }
  FisherMoments moments{MomentSums{sums.query, sums.weight}.mean(), MomentSums{sums.key, sums.weight}.mean(),
                        sums.key_sum};
  const auto dim = static_cast<std::size_t>(sums.key.dim);
  for (std::size_t i = 0; i < moments.key_mean.size(); ++i) moments.key_mean[i] /= sums.weight[i / dim];
  return moments;
}

void KeySums::merge(const KeySums& other) {
  add_to(sums, other.sums);
  tokens += other.tokens;
}

std::vector<double> KeySums::mean() const {
  std::vector<double> mean = sums;
  for (double& value : mean) value /= std::max(tokens, 1.0);
  return mean;
}

KeySums key_sums(LayerStream& layer, Backend& backend) {
  const auto zero = [](const QkvChunk& chunk) {
    return KeySums{std::vector<double>(static_cast<std::size_t>(chunk.view.k.num_heads * chunk.view.k.head_dim)), 0};
  };
  return sum_blocks(layer, backend, zero, [](const Chunks& chunks, KeySums& keys) {
    for (const QkvChunk& chunk : chunks) add_keys(chunk.view.k, keys);
  });
}

void AdditiveMoments::merge(const AdditiveMoments& other) {
  for (auto& [name, moments] : sums) moments.merge(other.sums.at(name));
  if (fisher) oscar::merge(*fisher, other.fisher.value());
  if (keys) keys->merge(other.keys.value());
}

MatrixStack centred(MatrixStack moments, std::span<const double> own, std::span<const double> mean) {
  const auto d = static_cast<std::size_t>(moments.dim);
  for (std::size_t h = 0; h < static_cast<std::size_t>(moments.count); ++h) {
    const auto a = own.subspan(h * d, d), m = mean.subspan(h * d, d);
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        moments[static_cast<int>(h)][i * d + j] += m[i] * m[j] - a[i] * m[j] - m[i] * a[j];
      }
    }
  }
  return moments;
}

MomentSums residual_moments(LayerStream& layer, Side side, const MatrixStack& rotation, Backend& backend) {
  return accumulate(layer, side, backend, [&](const Chunks& chunks, MomentSums& moments) {
    for (const QkvChunk& chunk : chunks) {
      const HeadsView& x = rows_of(chunk, side);
      if (x.head_dim != rotation.dim || (rotation.count != 1 && rotation.count != x.num_heads)) {
        throw DataError("the reference rotation does not fit the dump's heads", chunk.where,
                        "give a reference rotation fitted for this model");
      }
      backend.accumulate_residual_grams(x, rotation, RowCodec{}, moments.sums);
    }
    count_rows(chunks, false, moments);
  });
}

}  // namespace oscar
