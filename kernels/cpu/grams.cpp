// SPDX-License-Identifier: MIT
// Second moments. Work is cut into slabs of a fixed number of tokens; each slab has its own partial sum, and partial
// sums are added in slab order, so the number of threads changes no bit.
#include <algorithm>
#include <cmath>
#include <functional>

#include "base/check.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/cpu/products.hpp"

namespace oscar::cpu {
namespace {

constexpr std::int64_t kSlabTokens = 2048;  // one task
constexpr std::int64_t kWaveSlabs = 16;     // bounds the memory of partial sums
constexpr std::int64_t kBlockRows =
    256;  // rows converted at a time: 256 KB of doubles at d = 128, which the cache holds

/// Sums over [0, num_tokens) for every head: slab(head, begin, end, upper) adds its tokens to an upper triangle.
void sum_slabs(std::int64_t num_tokens, MatrixStack& grams,
               const std::function<void(int, std::int64_t, std::int64_t, double*)>& slab) {
  const std::size_t size = static_cast<std::size_t>(grams.dim) * grams.dim;
  for (std::int64_t first = 0; first < num_tokens; first += kSlabTokens * kWaveSlabs) {
    const std::int64_t last = std::min(first + kSlabTokens * kWaveSlabs, num_tokens);
    const auto slabs = static_cast<std::size_t>((last - first + kSlabTokens - 1) / kSlabTokens);
    std::vector<double> partials(slabs * grams.count * size);
    parallel_for(slabs * grams.count, [&](std::size_t task) {
      const std::int64_t begin = first + static_cast<std::int64_t>(task % slabs) * kSlabTokens;
      slab(static_cast<int>(task / slabs), begin, std::min(begin + kSlabTokens, last), &partials[task * size]);
    });
    parallel_for(static_cast<std::size_t>(grams.count), [&](std::size_t head) {
      for (std::size_t i = 0; i < slabs; ++i) {
        add_symmetric(std::span(partials).subspan((head * slabs + i) * size, size), grams[static_cast<int>(head)],
                      grams.dim);
      }
    });
  }
}

/// Tokens [begin, begin + count), query heads [head * g, head * g + g) as doubles (count * g, head_dim).
void group_rows(HeadsView x, int head, int g, std::int64_t begin, std::int64_t count, double* out) {
  const auto row_size = static_cast<std::size_t>(g) * x.head_dim;
  for (std::int64_t t = 0; t < count; ++t) {
    const std::size_t start = (static_cast<std::size_t>(begin + t) * x.num_heads + head * g) * x.head_dim;
    doubles_from(x.dtype, x.data + start * size_of(x.dtype), row_size, out + t * static_cast<std::int64_t>(row_size));
  }
}

/// energies[t, h] = x[t, h] forms[h] x[t, h]^T, (num_tokens, num_heads).
std::vector<double> row_energies(HeadsView x, const MatrixStack& forms) {
  std::vector<double> energies(static_cast<std::size_t>(x.num_tokens) * x.num_heads);
  const int d = x.head_dim;
  const std::int64_t blocks = (x.num_tokens + kBlockRows - 1) / kBlockRows;
  parallel_for(static_cast<std::size_t>(blocks * x.num_heads), [&](std::size_t task) {
    const auto head = static_cast<int>(task % static_cast<std::size_t>(x.num_heads));
    const std::int64_t begin = static_cast<std::int64_t>(task) / x.num_heads * kBlockRows;
    const std::int64_t count = std::min(kBlockRows, x.num_tokens - begin);
    std::vector<double> rows(static_cast<std::size_t>(count) * d), products(rows.size());
    x.head_rows(begin, count, head, rows.data());
    gemm({.m = count, .n = d, .k = d}, rows.data(), d, forms[head].data(), d, products.data(), d);
    for (std::int64_t t = 0; t < count; ++t) {
      const double* row = &rows[static_cast<std::size_t>(t) * d];
      const double* product = &products[static_cast<std::size_t>(t) * d];
      double sum = 0;
      for (int i = 0; i < d; ++i) sum += row[i] * product[i];
      energies[static_cast<std::size_t>((begin + t) * x.num_heads + head)] = sum;
    }
  });
  return energies;
}

}  // namespace

void accumulate_grams(HeadsView x, MatrixStack& grams) {
  OSCAR_CHECK(x.head_dim == grams.dim && x.num_heads % grams.count == 0);
  const int g = x.num_heads / grams.count;
  const std::int64_t block = std::max<std::int64_t>(kBlockRows / g, 1);
  sum_slabs(x.num_tokens, grams, [&](int head, std::int64_t begin, std::int64_t end, double* upper) {
    std::vector<double> rows(static_cast<std::size_t>(block * g) * x.head_dim);
    for (; begin < end; begin += block) {
      const std::int64_t count = std::min(block, end - begin);
      group_rows(x, head, g, begin, count, rows.data());
      add_gram_upper(rows.data(), count * g, x.head_dim, upper);
    }
  });
}

void accumulate_weighted_grams(HeadsView k, const MatrixStack& forms, HeadsView v, MatrixStack& grams,
                               std::span<double> weights) {
  OSCAR_CHECK(k.head_dim == forms.dim && k.num_heads == forms.count && k.num_tokens == v.num_tokens);
  OSCAR_CHECK(v.head_dim == grams.dim && v.num_heads == grams.count && k.num_heads == v.num_heads);
  OSCAR_CHECK(weights.size() == static_cast<std::size_t>(grams.count));
  const std::vector<double> energies = row_energies(k, forms);
  for (std::size_t i = 0; i < energies.size(); ++i) weights[i % weights.size()] += energies[i];
  const std::size_t heads = weights.size();
  sum_slabs(v.num_tokens, grams, [&](int head, std::int64_t begin, std::int64_t end, double* upper) {
    std::vector<double> rows(static_cast<std::size_t>(kBlockRows) * v.head_dim);
    for (; begin < end; begin += kBlockRows) {
      const std::int64_t count = std::min(kBlockRows, end - begin);
      v.head_rows(begin, count, head, rows.data());
      for (std::int64_t t = 0; t < count; ++t) {
        const double energy = energies[static_cast<std::size_t>(begin + t) * heads + static_cast<std::size_t>(head)];
        const double root = std::sqrt(std::max(energy, 0.0));
        for (std::int64_t i = t * v.head_dim; i < (t + 1) * v.head_dim; ++i) rows[static_cast<std::size_t>(i)] *= root;
      }
      add_gram_upper(rows.data(), count, v.head_dim, upper);
    }
  });
}

}  // namespace oscar::cpu
