// SPDX-License-Identifier: MIT
#include "codec/optr/loss.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "kernels/products.hpp"

namespace oscar::optr {
namespace {

using Floats = std::vector<float>;

/// a (m, k) b, b (k, n).
Floats times(std::span<const float> a, std::span<const float> b, std::size_t k) {
  Floats out(a.size() / k * (b.size() / k));
  row_product(a, b, false, k, out);
  return out;
}

/// a (m, k) b^T, b (n, k).
Floats times_transposed(std::span<const float> a, std::span<const float> b, std::size_t k) {
  Floats out(a.size() / k * (b.size() / k));
  row_product(a, b, true, k, out);
  return out;
}

/// factor a^T b of a (rows, m), b (rows, n), in fp64.
std::vector<double> outer_sum(std::span<const float> a, std::size_t m, std::span<const float> b, std::size_t n,
                              double factor) {
  std::vector<double> sum(m * n);
  for (std::size_t i = 0; i < a.size() / m; ++i) {
    for (std::size_t r = 0; r < m; ++r) {
      const double weight = factor * a[i * m + r];
      for (std::size_t c = 0; c < n; ++c) sum[r * n + c] += weight * b[i * n + c];
    }
  }
  return sum;
}

/// The tokens that are quantised.
struct History {
  std::size_t begin = 0, size = 0;

  History(const Reads& reads, Windows windows) : begin(static_cast<std::size_t>(windows.sink)) {
    const std::size_t exact = begin + static_cast<std::size_t>(windows.recent);
    OSCAR_CHECK(reads.tokens > exact);
    size = reads.tokens - exact;
  }
  [[nodiscard]] std::span<const float> rows(const Floats& all, std::size_t dim) const {
    return std::span(all).subspan(begin * dim, size * dim);
  }
};

/// decode(encode(x R)) - x R
Floats codec_errors(std::span<const float> x, std::span<const float> rotation, std::size_t dim, const Codec& codec) {
  const Floats turned = times(x, rotation, dim);
  Floats errors = turned;
  codec(errors);
  for (std::size_t i = 0; i < errors.size(); ++i) errors[i] -= turned[i];
  return errors;
}

/// scores become logarithms of their softmax.
void log_softmax(std::span<float> scores) {
  const float largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const float score : scores) sum += std::exp(score - largest);
  const float shift = largest + static_cast<float>(std::log(sum));
  for (float& score : scores) score -= shift;
}

/// Rows of `errors` times their head's form.
Floats through_output(const Floats& errors, const Reads& reads, const Setting& setting) {
  Floats out;
  const std::size_t part = errors.size() / reads.group, dim = reads.value_dim;
  for (std::size_t j = 0; j < reads.group; ++j) {
    const Floats head = times(std::span(errors).subspan(j * part, part),
                              std::span(setting.output_forms).subspan(j * dim * dim, dim * dim), dim);
    out.insert(out.end(), head.begin(), head.end());
  }
  return out;
}

double inner(const Floats& a, const Floats& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

/// Keys seen by row i, whose position is among the last of the sequence.
std::size_t visible(const Reads& reads, std::size_t row) {
  const std::size_t per_head = reads.rows() / reads.group;
  return reads.tokens - per_head + row % per_head + 1;
}

/// Quantised keys as the queries meet them.
struct QuantisedKeys {
  Floats queries;  // turned
  Floats errors;   // of the history, turned
  Floats shares;   // p^, (rows, T)
  Floats change;   // p^ - p
  double kl = 0;   // sum over rows
};

QuantisedKeys read_keys(const Reads& reads, std::span<const float> rotation, const Setting& setting) {
  const History history(reads, setting.windows);
  const std::size_t dim = reads.key_dim, tokens = reads.tokens;
  QuantisedKeys read;
  read.errors = codec_errors(history.rows(reads.keys, dim), rotation, dim, setting.key_codec);
  read.queries = times(reads.queries, rotation, dim);
  const Floats shifts = times_transposed(read.queries, read.errors, dim);
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  read.shares.resize(reads.rows() * tokens), read.change.resize(read.shares.size());
  Floats exact, quantised;
  for (std::size_t i = 0; i < reads.rows(); ++i) {
    const std::size_t seen = visible(reads, i);
    exact.assign(reads.scores.begin() + static_cast<std::ptrdiff_t>(i * tokens),
                 reads.scores.begin() + static_cast<std::ptrdiff_t>(i * tokens + seen));
    quantised = exact;
    for (std::size_t j = 0; j < std::min(history.size, seen - std::min(seen, history.begin)); ++j) {
      quantised[history.begin + j] += scale * shifts[i * history.size + j];
    }
    log_softmax(exact), log_softmax(quantised);
    for (std::size_t j = 0; j < seen; ++j) {
      const float p = std::exp(exact[j]), q = std::exp(quantised[j]);
      read.kl += double{p} * (double{exact[j]} - quantised[j]);
      read.shares[i * tokens + j] = q, read.change[i * tokens + j] = q - p;
    }
  }
  return read;
}

/// Columns of the history of m (rows, T).
Floats history_columns(const Floats& m, std::size_t tokens, const History& history) {
  Floats part;
  for (std::size_t row = 0; row < m.size(); row += tokens) {
    const auto begin = m.begin() + static_cast<std::ptrdiff_t>(row + history.begin);
    part.insert(part.end(), begin, begin + static_cast<std::ptrdiff_t>(history.size));
  }
  return part;
}

/// Of scores: from the KL, p^ - p; from the outputs, whose gradient is `pull` for a share, through the softmax.
Floats score_gradient(const QuantisedKeys& read, const Floats& pull, std::size_t tokens) {
  Floats gradient = read.change;
  for (std::size_t row = 0; row < gradient.size(); row += tokens) {
    double mean = 0;
    for (std::size_t j = row; j < row + tokens; ++j) mean += double{read.shares[j]} * pull[j];
    for (std::size_t j = row; j < row + tokens; ++j) {
      gradient[j] += read.shares[j] * (pull[j] - static_cast<float>(mean));
    }
  }
  return gradient;
}

}  // namespace

void take_scores(Reads& reads) {
  reads.scores = times_transposed(reads.queries, reads.keys, reads.key_dim);
  for (float& score : reads.scores) score /= std::sqrt(static_cast<float>(reads.key_dim));
}

Loss key_loss(const Reads& reads, std::span<const float> rotation, const Setting& setting) {
  const QuantisedKeys read = read_keys(reads, rotation, setting);
  const Floats errors = times(read.change, reads.values, reads.tokens);
  Floats pulled = through_output(errors, reads, setting);
  const auto rows = static_cast<double>(reads.rows());
  Loss loss{(read.kl + inner(errors, pulled)) / rows, {}};
  for (float& value : pulled) value *= 2;
  const Floats gradient = score_gradient(read, times_transposed(pulled, reads.values, reads.value_dim), reads.tokens);
  const History history(reads, setting.windows);
  const Floats met = times(history_columns(gradient, reads.tokens, history), read.errors, history.size);
  const double scale = 1 / (rows * std::sqrt(static_cast<double>(reads.key_dim)));
  loss.gradient = outer_sum(read.queries, reads.key_dim, met, reads.key_dim, scale);
  return loss;
}

std::vector<float> history_shares(const Reads& reads, std::span<const float> key_rotation, const Setting& setting) {
  return history_columns(read_keys(reads, key_rotation, setting).shares, reads.tokens, History(reads, setting.windows));
}

Loss value_loss(const Reads& reads, std::span<const float> shares, std::span<const float> rotation,
                const Setting& setting) {
  const History history(reads, setting.windows);
  const std::size_t dim = reads.value_dim;
  const Floats codec = codec_errors(history.rows(reads.values, dim), rotation, dim, setting.value_codec);
  const Floats turned = times(shares, codec, history.size);  // p^ dV, in turned coordinates
  const Floats errors = times_transposed(turned, rotation, dim);
  const Floats pulled = through_output(errors, reads, setting);
  const auto rows = static_cast<double>(reads.rows());
  return {inner(errors, pulled) / rows, outer_sum(turned, dim, times(pulled, rotation, dim), dim, -2 / rows)};
}

}  // namespace oscar::optr
