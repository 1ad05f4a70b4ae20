// SPDX-License-Identifier: MIT
#include "kernels/key_gradient.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "base/exp.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/cpu/products.hpp"

namespace oscar::cpu {
namespace {

constexpr std::int64_t kRowsPerBlock = 64;  // whose scores stay in cache

std::vector<float> turned(const std::vector<float>& rows, std::span<const float> rotation, std::int64_t dim) {
  std::vector<float> out(rows.size());
  gemm({.m = static_cast<std::int64_t>(rows.size()) / dim, .n = dim, .k = dim}, rows.data(), dim, rotation.data(), dim,
       out.data(), dim);
  return out;
}

/// weights = exp(scores - max); returns their sum, and the maximum in `highest`.
double exponentials(std::span<const float> scores, std::span<float> weights, float& highest) {
  highest = highest_of(scores.data(), scores.size());
  for (std::size_t j = 0; j < scores.size(); ++j) weights[j] = scores[j] - highest;
  exp_in_place(weights);
  return strand_sum(scores.size(), [&](std::size_t j) { return double{weights[j]}; });
}

/// errors: of the scores of one query; becomes p^ - p for keys of the history [begin, end), 0 for all others. Returns
/// the KL.
double differences(std::span<const float> exact, std::span<float> errors, std::size_t begin, std::size_t end,
                   std::vector<float>& scratch) {
  const std::size_t keys = exact.size();
  scratch.resize(2 * keys);
  const std::span<float> p = std::span(scratch).first(keys), p_hat = std::span(scratch).subspan(keys, keys);
  std::fill(errors.begin(), errors.begin() + static_cast<std::ptrdiff_t>(begin), 0.0F);
  std::fill(errors.begin() + static_cast<std::ptrdiff_t>(end), errors.end(), 0.0F);
  float highest = 0, highest_hat = 0;
  const double sum = exponentials(exact, p, highest);
  for (std::size_t j = 0; j < keys; ++j) p_hat[j] = exact[j] + errors[j];
  const double sum_hat = exponentials(p_hat, p_hat, highest_hat);
  // sum_j p_j (s_j - s^_j) + log Z^ - log Z
  const double shift = strand_sum(keys, [&](std::size_t j) { return double{p[j]} * errors[j]; }) / sum;
  const auto scale = static_cast<float>(1 / sum), scale_hat = static_cast<float>(1 / sum_hat);
  for (std::size_t j = begin; j < end; ++j) errors[j] = p_hat[j] * scale_hat - p[j] * scale;
  return std::log(sum_hat) + highest_hat - std::log(sum) - highest - shift;
}

class HeadGradient {
 public:
  HeadGradient(const KeyReads& reads, std::span<const float> rotation, const RowCodec& codec, Windows windows)
      : reads_(reads),
        windows_(windows),
        dim_(reads.head_dim),
        keys_(turned(reads.keys, rotation, dim_)),
        queries_(turned(reads.queries, rotation, dim_)),
        errors_(keys_.size()) {
    quantize(keys_, reads.head_dim, codec, Precision::kExact, errors_, nullptr);
    for (std::size_t i = 0; i < errors_.size(); ++i) errors_[i] -= keys_[i];
    result_.gradient.resize(static_cast<std::size_t>(dim_ * dim_));
  }

  KlGradient run() {
    const auto count = static_cast<std::int64_t>(reads_.positions.size());
    std::vector<float> sum(static_cast<std::size_t>(dim_ * dim_));
    for (std::int64_t first = 0; first < count; first += kRowsPerBlock) {
      add(first, std::min(kRowsPerBlock, count - first), sum);
    }
    std::copy(sum.begin(), sum.end(), result_.gradient.begin());
    return std::move(result_);
  }

 private:
  void add(std::int64_t first, std::int64_t rows, std::vector<float>& sum) {
    const std::int64_t keys = reads_.positions[static_cast<std::size_t>(first + rows - 1)] + 1;
    const float* const queries = queries_.data() + first * dim_;
    const double scale = 1 / std::sqrt(static_cast<double>(dim_));
    exact_.resize(static_cast<std::size_t>(rows * keys));
    differences_.resize(exact_.size());
    const Gemm scores{.m = rows, .n = keys, .k = dim_, .b = Transpose::kYes, .alpha = scale};
    gemm(scores, queries, dim_, keys_.data(), dim_, exact_.data(), keys);
    gemm(scores, queries, dim_, errors_.data(), dim_, differences_.data(), keys);
    for (std::int64_t i = 0; i < rows; ++i) add_query(first + i, i * keys, keys);
    std::vector<float> weighted(static_cast<std::size_t>(rows * dim_)), transposed(weighted.size());
    gemm({.m = rows, .n = dim_, .k = keys}, differences_.data(), keys, errors_.data(), dim_, weighted.data(), dim_);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t c = 0; c < dim_; ++c)
        transposed[static_cast<std::size_t>(c * rows + i)] = queries[i * dim_ + c];
    }
    gemm({.m = dim_, .n = dim_, .k = rows, .alpha = scale, .accumulate = true}, transposed.data(), rows,
         weighted.data(), dim_, sum.data(), dim_);
  }

  void add_query(std::int64_t query, std::int64_t offset, std::int64_t width) {
    const std::int64_t position = reads_.positions[static_cast<std::size_t>(query)];
    const auto seen = static_cast<std::size_t>(position + 1);
    const auto begin = std::min(static_cast<std::size_t>(windows_.sink), seen);
    const auto end = static_cast<std::size_t>(
        std::max<std::int64_t>(position - windows_.recent + 1, static_cast<std::int64_t>(begin)));
    const std::span<float> row =
        std::span(differences_).subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(width));
    result_.softmax_kl += differences(std::span(exact_).subspan(static_cast<std::size_t>(offset), seen),
                                      row.first(seen), begin, end, scratch_);
    std::fill(row.begin() + static_cast<std::ptrdiff_t>(seen), row.end(), 0.0F);
  }

  const KeyReads& reads_;
  Windows windows_;
  std::int64_t dim_;
  std::vector<float> keys_, queries_, errors_;
  std::vector<float> exact_, differences_, scratch_;
  KlGradient result_;
};

class CpuKeyReads : public HeldKeyReads {
 public:
  CpuKeyReads(std::span<const KeyReads* const> reads, const RowCodec& codec, Windows windows)
      : reads_(reads.begin(), reads.end()),
        codec_(codec),
        windows_(windows),
        dim_(static_cast<std::size_t>(checked_head_dim(reads))) {}

  [[nodiscard]] KlGradient gradient(std::span<const float> rotation) override {
    OSCAR_CHECK(rotation.size() == dim_ * dim_);
    std::vector<KlGradient> parts(reads_.size());
    parallel_for(parts.size(),
                 [&](std::size_t i) { parts[i] = HeadGradient(*reads_[i], rotation, codec_, windows_).run(); });
    KlGradient sum{0, std::vector<double>(dim_ * dim_)};
    for (const KlGradient& part : parts) {
      sum.softmax_kl += part.softmax_kl;
      for (std::size_t i = 0; i < part.gradient.size(); ++i) sum.gradient[i] += part.gradient[i];
    }
    return sum;
  }

 private:
  std::vector<const KeyReads*> reads_;
  RowCodec codec_;
  Windows windows_;
  std::size_t dim_;
};

}  // namespace

std::unique_ptr<HeldKeyReads> hold(std::span<const KeyReads* const> reads, const RowCodec& codec, Windows windows) {
  return std::make_unique<CpuKeyReads>(reads, codec, windows);
}

}  // namespace oscar::cpu
