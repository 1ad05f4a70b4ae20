// SPDX-License-Identifier: MIT
#include "stats/moments.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "base/errors.hpp"

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

/// Reads the whole stream; add() does the arithmetic of one chunk and adds to total.
MomentSums accumulate(LayerStream& layer, Side side, const std::function<void(const QkvChunk&, MomentSums&)>& add) {
  layer.rewind();
  MomentSums moments;
  QkvChunk chunk;
  while (layer.next(chunk)) {
    throw_if_interrupted();
    if (moments.sums.count == 0) {
      moments.sums = MatrixStack(rows_of(chunk, side).num_heads, rows_of(chunk, side).head_dim);
      moments.total.assign(static_cast<std::size_t>(moments.sums.count), 0.0);
    }
    add(chunk, moments);
    if (all_finite(moments.sums.data) && all_finite(moments.total)) continue;
    throw_if_not_finite(chunk.view.q, "q", chunk);
    throw_if_not_finite(chunk.view.k, "k", chunk);
    throw_if_not_finite(chunk.view.v, "v", chunk);
    throw NumericalError("a second moment overflows", chunk.where, "check the scale of the dumped values");
  }
  if (moments.sums.count == 0) throw DataError("no tokens", "", "dump at least one sequence, or raise --max-tokens");
  return moments;
}

void count_rows(MomentSums& moments, std::int64_t rows) {
  for (double& total : moments.total) total += static_cast<double>(rows);
}

std::int64_t query_rows_per_head(const QkvChunk& chunk) {
  return chunk.view.q.num_tokens * (chunk.view.q.num_heads / chunk.view.k.num_heads);
}

}  // namespace

void MomentSums::merge(const MomentSums& other) {
  if (sums.count != other.sums.count || sums.dim != other.sums.dim) {
    throw DataError("moments of different shape cannot be merged", "", "merge statistics of the same model only");
  }
  std::transform(sums.data.begin(), sums.data.end(), other.sums.data.begin(), sums.data.begin(), std::plus<>());
  std::transform(total.begin(), total.end(), other.total.begin(), total.begin(), std::plus<>());
}

MatrixStack MomentSums::mean() const {
  MatrixStack out = sums;
  for (int h = 0; h < out.count; ++h) {
    for (double& value : out[h]) value /= std::max(total[static_cast<std::size_t>(h)], 1e-12);
  }
  return out;
}

MomentSums query_moments(LayerStream& layer, Backend& backend) {
  return accumulate(layer, Side::kKey, [&](const QkvChunk& chunk, MomentSums& moments) {
    backend.accumulate_grams(chunk.view.q, moments.sums);
    count_rows(moments, query_rows_per_head(chunk));
  });
}

MomentSums plain_moments(LayerStream& layer, Side side, Backend& backend) {
  return accumulate(layer, side, [&](const QkvChunk& chunk, MomentSums& moments) {
    backend.accumulate_grams(rows_of(chunk, side), moments.sums);
    count_rows(moments, chunk.view.k.num_tokens);
  });
}

MomentSums score_weighted_value_moments(LayerStream& layer, const MatrixStack& query_covariance, Backend& backend) {
  return accumulate(layer, Side::kValue, [&](const QkvChunk& chunk, MomentSums& moments) {
    backend.accumulate_weighted_grams(chunk.view.k, query_covariance, chunk.view.v, moments.sums, moments.total);
  });
}

MomentSums output_moments(LayerStream& layer, Backend& backend) {
  return accumulate(layer, Side::kValue, [&](const QkvChunk& chunk, MomentSums& moments) {
    backend.accumulate_output_grams(chunk.view, chunk.sequences, moments.sums);
    count_rows(moments, query_rows_per_head(chunk));
  });
}

MomentSums residual_moments(LayerStream& layer, Side side, const MatrixStack& rotation, Backend& backend) {
  return accumulate(layer, side, [&](const QkvChunk& chunk, MomentSums& moments) {
    const HeadsView& x = rows_of(chunk, side);
    if (x.head_dim != rotation.dim || (rotation.count != 1 && rotation.count != x.num_heads)) {
      throw DataError("the reference rotation does not fit the dump's heads", chunk.where,
                      "give a reference rotation fitted for this model");
    }
    backend.accumulate_residual_grams(x, rotation, RowCodec{}, moments.sums);
    count_rows(moments, x.num_tokens);
  });
}

}  // namespace oscar
