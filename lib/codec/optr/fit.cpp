// SPDX-License-Identifier: MIT
#include "codec/optr/fit.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "codec/optr/descent.hpp"
#include "codec/optr/loss.hpp"
#include "kernels/backend.hpp"
#include "kernels/products.hpp"
#include "peers/baselines.hpp"

namespace oscar {
namespace {

using optr::LossOf;
using optr::Reads;
using optr::Setting;

std::vector<HeadsView> views_of(const std::vector<QkvView>& sequences, HeadsView QkvView::*rows) {
  std::vector<HeadsView> views;
  for (const QkvView& sequence : sequences) views.push_back(sequence.*rows);
  return views;
}

/// The largest component of each eigenvector (column) positive: the same on every machine and device.
void fix_signs(std::vector<double>& vectors, std::size_t dim) {
  for (std::size_t j = 0; j < dim; ++j) {
    double largest = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      const double component = vectors[i * dim + j];
      if (std::abs(component) > std::abs(largest)) largest = component;
    }
    for (std::size_t i = 0; i < dim && largest < 0; ++i) vectors[i * dim + j] *= -1;
  }
}

/// U H of the sum of moments / weights.
MatrixStack rotation_of(const MatrixStack& moments, std::span<const double> weights, Backend& backend) {
  const auto dim = static_cast<std::size_t>(moments.dim);
  MatrixStack mean(1, moments.dim);
  for (int h = 0; h < moments.count; ++h) {
    const double factor = 1 / std::max(weights[static_cast<std::size_t>(h)], 1e-12);
    for (std::size_t i = 0; i < dim * dim; ++i) mean.data[i] += factor * moments[h][i];
  }
  std::vector<double> vectors = backend.eigh(mean).front().vectors;
  fix_signs(vectors, dim);
  const MatrixStack hadamard = hadamard_baseline_matrix(moments.dim, moments.dim);
  square_product(vectors, false, hadamard.data, dim, mean.data);
  return mean;
}

struct Rotations {
  MatrixStack key, value;  // one each
};

Rotations oscar_rotations(const std::vector<QkvView>& sequences, Backend& backend) {
  const QkvView& first = sequences.front();
  const int heads = first.k.num_heads;
  MatrixStack queries(heads, first.k.head_dim), values(heads, first.v.head_dim);
  backend.accumulate_grams(views_of(sequences, &QkvView::q), queries);
  std::vector<double> weights(static_cast<std::size_t>(heads));
  backend.accumulate_weighted_grams(views_of(sequences, &QkvView::k), queries, views_of(sequences, &QkvView::v), values,
                                    weights);
  const std::vector<double> even(weights.size(), 1.0);
  return {rotation_of(queries, even, backend), rotation_of(values, weights, backend)};
}

/// (tokens, d) of one head.
std::vector<float> head_rows(HeadsView x, int head, std::int64_t begin) {
  const auto dim = static_cast<std::size_t>(x.head_dim);
  std::vector<float> rows(static_cast<std::size_t>(x.num_tokens - begin) * dim);
  for (std::int64_t t = begin; t < x.num_tokens; ++t) {
    x.row(t, head, std::span(rows).subspan(static_cast<std::size_t>(t - begin) * dim, dim));
  }
  return rows;
}

std::vector<double> mean_key(const std::vector<QkvView>& sequences, int head) {
  std::vector<double> mean(static_cast<std::size_t>(sequences.front().k.head_dim));
  double tokens = 0;
  for (const QkvView& sequence : sequences) {
    const std::vector<float> rows = head_rows(sequence.k, head, 0);
    for (std::size_t i = 0; i < rows.size(); ++i) mean[i % mean.size()] += rows[i];
    tokens += static_cast<double>(sequence.k.num_tokens);
  }
  for (double& value : mean) value /= tokens;
  return mean;
}

Reads reads_of(const QkvView& sequence, int head, const std::vector<double>& mean, std::int64_t queries) {
  Reads reads;
  reads.key_dim = static_cast<std::size_t>(sequence.k.head_dim);
  reads.value_dim = static_cast<std::size_t>(sequence.v.head_dim);
  reads.tokens = static_cast<std::size_t>(sequence.k.num_tokens);
  reads.group = static_cast<std::size_t>(sequence.q.num_heads / sequence.k.num_heads);
  reads.keys = head_rows(sequence.k, head, 0);
  for (std::size_t i = 0; i < reads.keys.size(); ++i) reads.keys[i] -= static_cast<float>(mean[i % mean.size()]);
  reads.values = head_rows(sequence.v, head, 0);
  const std::int64_t begin = std::max<std::int64_t>(0, sequence.q.num_tokens - queries);
  for (int j = 0; j < static_cast<int>(reads.group); ++j) {
    const std::vector<float> rows = head_rows(sequence.q, head * static_cast<int>(reads.group) + j, begin);
    reads.queries.insert(reads.queries.end(), rows.begin(), rows.end());
  }
  take_scores(reads);
  return reads;
}

/// One KV head: keys first, since values are read through the shares of quantised keys.
struct HeadFit {
  std::vector<float> key, value;
  OptrHead of_keys, of_values;
};

HeadFit fit_head(const std::vector<Reads>& reads, const Setting& setting, const Rotations& start,
                 const OptrOptions& options) {
  const LossOf of_keys = [&](std::size_t s, std::span<const float> r) { return key_loss(reads[s], r, setting); };
  HeadFit fit;
  std::tie(fit.key, fit.of_keys) = descend(of_keys, start.key.data, reads.front().key_dim, reads.size(), options);
  std::vector<std::vector<float>> shares;
  for (const Reads& each : reads) shares.push_back(history_shares(each, fit.key, setting));
  const LossOf of_values = [&](std::size_t s, std::span<const float> r) {
    return value_loss(reads[s], shares[s], r, setting);
  };
  std::tie(fit.value, fit.of_values) =
      descend(of_values, start.value.data, reads.front().value_dim, reads.size(), options);
  return fit;
}

optr::Codec int2(int dim, double clip_ratio, Backend& backend) {
  return [=, &backend](std::span<float> rows) {
    backend.quantize(rows, dim, RowCodec{.clip_ratio = clip_ratio}, Precision::kExact, rows, nullptr);
  };
}

KvSide side_of(Transform transform, double clip_ratio) {
  KvSide side;
  side.transform = std::make_shared<const Transform>(std::move(transform));
  side.codec.clip_ratio = clip_ratio;
  return side;
}

std::vector<QkvView> usable(const OptrData& data, Windows windows) {
  std::vector<QkvView> sequences;
  for (const QkvView& sequence : data.sequences) {
    if (longer_than_windows(sequence.k.num_tokens, windows)) sequences.push_back(sequence);
  }
  if (sequences.size() >= 2) return sequences;
  throw DataError("OptR needs two calibration sequences that are longer than the windows, there are " +
                      std::to_string(sequences.size()),
                  "calibration data", "give longer text, or smaller windows");
}

}  // namespace

bool longer_than_windows(std::int64_t tokens, Windows windows) { return tokens > windows.sink + windows.recent; }

OptrFit fit_optr(const OptrData& data, const OptrOptions& options, Backend& backend) {
  const std::vector<QkvView> sequences = usable(data, options.windows);
  const Rotations start = oscar_rotations(sequences, backend);
  const int heads = sequences.front().k.num_heads, group = sequences.front().q.num_heads / heads;
  const auto count = static_cast<std::size_t>(heads);
  std::vector<std::vector<double>> means(count);
  std::vector<HeadFit> found(count);
  parallel_for(count, [&](std::size_t h) {
    const int head = static_cast<int>(h);
    means[h] = mean_key(sequences, head);
    std::vector<Reads> reads;
    for (const QkvView& each : sequences) reads.push_back(reads_of(each, head, means[h], options.queries));
    Setting setting{options.windows,
                    int2(start.key.dim, kPublishedKeyClip, backend),
                    int2(start.value.dim, kPublishedValueClip, backend),
                    {}};
    for (int j = head * group; j < (head + 1) * group; ++j) {
      setting.output_forms.insert(setting.output_forms.end(), data.output_forms[j].begin(), data.output_forms[j].end());
    }
    found[h] = fit_head(reads, setting, start, options);
  });
  Transform key{{heads, start.key.dim}, {}, {}}, value{{heads, start.value.dim}, {}, {}};
  OptrFit fit;
  for (int h = 0; h < heads; ++h) {
    const HeadFit& head = found[static_cast<std::size_t>(h)];
    std::copy(head.key.begin(), head.key.end(), key.rotation[h].begin());
    std::copy(head.value.begin(), head.value.end(), value.rotation[h].begin());
    const std::vector<double>& mean = means[static_cast<std::size_t>(h)];
    key.mean.insert(key.mean.end(), mean.begin(), mean.end());
    fit.keys.push_back(head.of_keys), fit.values.push_back(head.of_values);
  }
  fit.layer = {start.key.dim, side_of(std::move(key), kPublishedKeyClip),
               side_of(std::move(value), kPublishedValueClip), heads, start.value.dim};
  return fit;
}

}  // namespace oscar
