// SPDX-License-Identifier: MIT
#include "codec/optr/exponential.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "kernels/products.hpp"

namespace oscar::optr {
namespace {

/// A matrix and how it changes; the change may be left out (empty).
struct Moving {
  Matrix value, change;
};

Matrix product(const Matrix& a, const Matrix& b, std::size_t dim) {
  Matrix out(dim * dim);
  square_product(a, false, b, dim, out);
  return out;
}

Moving product(const Moving& a, const Moving& b, std::size_t dim) {
  Moving out{product(a.value, b.value, dim), {}};
  if (a.change.empty()) return out;
  out.change = product(a.change, b.value, dim);
  const Matrix other = product(a.value, b.change, dim);
  for (std::size_t i = 0; i < other.size(); ++i) out.change[i] += other[i];
  return out;
}

double largest_row_sum(const Matrix& x, std::size_t dim) {
  double largest = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < dim; ++j) sum += std::abs(x[i * dim + j]);
    largest = std::max(largest, sum);
  }
  return largest;
}

void add(Matrix& sum, double factor, const Matrix& x) {
  for (std::size_t i = 0; i < x.size(); ++i) sum[i] += factor * x[i];
}

void add(Moving& sum, double factor, const Moving& x) {
  add(sum.value, factor, x.value);
  add(sum.change, factor, x.change);
}

/// exp(x) by its series up to x^11, after x was halved until |x| <= 1/2, and as many squarings.
Moving exponential(const Moving& x, std::size_t dim) {
  int squarings = 0;
  for (double norm = largest_row_sum(x.value, dim); norm > 0.5; norm /= 2) ++squarings;
  const Moving zero{Matrix(x.value.size()), Matrix(x.change.size())};
  Moving scaled = zero;
  add(scaled, std::ldexp(1.0, -squarings), x);
  const Moving square = product(scaled, scaled, dim), cube = product(square, scaled, dim);
  // Three terms at a time: they share a power of the cube.
  Moving sum = zero;
  for (int k = 9; k >= 0; k -= 3) {
    if (k < 9) sum = product(cube, sum, dim);
    for (std::size_t i = 0; i < dim; ++i) sum.value[i * dim + i] += 1 / std::tgamma(k + 1);
    add(sum, 1 / std::tgamma(k + 2), scaled);
    add(sum, 1 / std::tgamma(k + 3), square);
  }
  for (int i = 0; i < squarings; ++i) sum = product(sum, sum, dim);
  return sum;
}

/// sign (A - A^T)
Matrix skew_of(std::span<const double> a, std::size_t dim, double sign) {
  OSCAR_CHECK(a.size() == dim * dim);
  Matrix x(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) x[i * dim + j] = sign * (a[i * dim + j] - a[j * dim + i]);
  }
  return x;
}

}  // namespace

Matrix turn_of(std::span<const double> a, std::size_t dim) { return exponential({skew_of(a, dim, 1), {}}, dim).value; }

Matrix pull_back(std::span<const double> a, std::span<const double> gradient, std::size_t dim) {
  // The adjoint of the derivative of exp at X is its derivative at X^T = -X.
  const Moving moved = exponential({skew_of(a, dim, -1), Matrix(gradient.begin(), gradient.end())}, dim);
  return skew_of(moved.change, dim, 1);
}

}  // namespace oscar::optr
