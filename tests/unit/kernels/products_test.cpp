// SPDX-License-Identifier: MIT
// Products against their definition, to the bit, for every tile that this processor can run.
#include "kernels/cpu/products.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "conformance/samples.hpp"
#include "kernels/cpu/product_tile.hpp"
#include "kernels/products.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

template <class T>
std::vector<T> random_values(std::int64_t size, unsigned seed) {
  const std::vector<float> values = test::gaussian_floats(static_cast<std::size_t>(size), seed);
  std::vector<T> result(values.begin(), values.end());
  for (T& x : result) x = x * T{1.0000001} + x / T{3};  // all bits of the type are in use
  return result;
}

/// What kernels/cpu/products.hpp defines.
template <class T>
void define_product(const cpu::Gemm& s, const T* a, const T* b, T* c) {
  const std::int64_t step = 256;
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < s.n; ++j) {
      T& out = c[i * s.n + j];
      if (!s.accumulate) out = 0;
      for (std::int64_t first = 0; first < s.k; first += step) {
        T sum = 0;
        for (std::int64_t k = first; k < std::min(first + step, s.k); ++k) {
          sum = std::fma(a[i * s.k + k], b[s.b == cpu::Transpose::kYes ? j * s.k + k : k * s.n + j], sum);
        }
        const T scaled = static_cast<T>(s.alpha) * sum;
        out = first == 0 && !s.accumulate ? scaled : out + scaled;
      }
    }
  }
}

/// The last two are larger than a block of rows, and than the columns that are copied together.
constexpr std::int64_t kSizes[][3] = {{1, 1, 1},    {8, 32, 256}, {7, 5, 3},       {13, 50, 257},
                                      {30, 9, 600}, {3, 65, 0},   {101, 300, 257}, {5, 1060, 300}};

}  // namespace

TEST_CASE_TEMPLATE("a product has the bits of its definition", T, double, float) {
  for (const auto& [m, n, k] : kSizes) {
    const std::vector<T> a = random_values<T>(m * k, 1), b = random_values<T>(k * n, 2);
    for (const cpu::Transpose transpose : {cpu::Transpose::kNo, cpu::Transpose::kYes}) {
      for (const bool accumulate : {false, true}) {
        const cpu::Gemm shape{m, n, k, transpose, 0.3, accumulate};
        std::vector<T> expected = random_values<T>(m * n, 3), found = expected;
        define_product(shape, a.data(), b.data(), expected.data());
        cpu::gemm(shape, a.data(), k, b.data(), transpose == cpu::Transpose::kYes ? k : n, found.data(), n);
        CAPTURE(m);
        CHECK(found == expected);
      }
    }
  }
}

TEST_CASE_TEMPLATE("tiles of all instruction sets have the same bits", T, double, float) {
  const std::int64_t depth = 77;
  for (const cpu::ProductTile<T>& tile : cpu::product_tiles<T>()) {
    CAPTURE(tile.name);
    REQUIRE(tile.rows <= cpu::kMaxTileRows);
    REQUIRE(tile.columns * sizeof(T) <= cpu::kMaxTileBytes);
    const std::vector<T> a = random_values<T>(depth * tile.rows, 1), panel = random_values<T>(depth * tile.columns, 2);
    std::vector<T> expected(static_cast<std::size_t>(tile.rows * tile.columns)), found(expected);
    define_product({tile.rows, tile.columns, depth}, a.data(), panel.data(), expected.data());
    tile.sum(depth, a.data(), depth, 1, panel.data(), found.data());
    CHECK(found == expected);
  }
}

TEST_CASE("a gram has the bits of a product, and an untouched lower triangle") {
  for (const std::int64_t dim : {1, 12, 50, 128, 300}) {
    const std::int64_t count = 300;
    const std::vector<double> rows = random_values<double>(count * dim, 4);
    std::vector<double> transposed(rows.size());
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::int64_t i = 0; i < dim; ++i) transposed[static_cast<std::size_t>(i * count + t)] = rows[t * dim + i];
    }
    const std::vector<double> before = random_values<double>(dim * dim, 5);
    std::vector<double> product = before, gram = before;
    define_product({.m = dim, .n = dim, .k = count, .accumulate = true}, transposed.data(), rows.data(),
                   product.data());
    cpu::add_gram_upper(rows.data(), count, dim, gram.data());
    for (std::int64_t i = 0; i < dim; ++i) {
      for (std::int64_t j = 0; j < dim; ++j) {
        const auto at = static_cast<std::size_t>(i * dim + j);
        REQUIRE(gram[at] == (j < i ? before[at] : product[at]));
      }
    }
  }
}

TEST_CASE("square products, also of a transposed matrix") {
  const std::int64_t dim = 20;
  const std::vector<double> a = random_values<double>(dim * dim, 1), b = random_values<double>(dim * dim, 2);
  std::vector<double> a_transposed(a.size()), expected(a.size()), found(a.size());
  for (std::int64_t i = 0; i < dim; ++i) {
    for (std::int64_t j = 0; j < dim; ++j) a_transposed[static_cast<std::size_t>(i * dim + j)] = a[j * dim + i];
  }
  define_product({dim, dim, dim}, a.data(), b.data(), expected.data());
  square_product(a, false, b, static_cast<std::size_t>(dim), found);
  CHECK(found == expected);
  square_product(a_transposed, true, b, static_cast<std::size_t>(dim), found);
  CHECK(found == expected);
}

}  // namespace oscar
