// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>

#include "verify/structure/checks.hpp"
#include "verify/structure/for_each_side.hpp"
#include "verify/structure/matrix.hpp"

namespace oscar::verify {
namespace {

double worst_error(const MatrixStack& stack) {
  double worst = 0;
  for (int m = 0; m < stack.count; ++m) {
    worst = std::max(worst, orthogonality_error(stack[m], static_cast<std::size_t>(stack.dim)));
  }
  return worst;
}

std::vector<double> row_lengths(std::span<const double> matrix, std::size_t dim) {
  std::vector<double> lengths(dim);
  for (std::size_t i = 0; i < matrix.size(); ++i) lengths[i / dim] += matrix[i] * matrix[i];
  for (double& length : lengths) length = std::sqrt(length);
  return lengths;
}

/// max |rotation read^T - I|, each entry relative to the lengths of the rows that meet in it: a key's channel is as
/// large as its row of the write side is short, so that this is what is left of a logit.
double worst_pair_error(const MatrixStack& rotation, const MatrixStack& read) {
  if (read.dim != rotation.dim || read.count != rotation.count) return std::numeric_limits<double>::infinity();
  double worst = 0;
  const auto dim = static_cast<std::size_t>(rotation.dim);
  for (int m = 0; m < rotation.count; ++m) {
    const Matrix product = multiply(rotation[m], transpose(read[m], dim), dim);
    const std::vector<double> written = row_lengths(rotation[m], dim), lengths = row_lengths(read[m], dim);
    for (std::size_t i = 0; i < product.size(); ++i) {
      const double scale = written[i / dim] * lengths[i % dim];
      const double error = std::abs(product[i] - (i / dim == i % dim ? 1.0 : 0.0)) / scale;
      worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
  }
  return worst;
}

MatrixStack as_bf16(MatrixStack stack) {
  for (double& x : stack.data) x = round_to_bf16(static_cast<float>(x));
  return stack;
}

/// What is wrong with the matrices, exact and as servers cast them, under `name` and `name`_bf16.
void add_errors(const std::string& name, int layer, const std::string& target, double exact, double served,
                const std::string& remedy, std::vector<Check>& checks) {
  const bool exact_ok = exact <= kOrthogonalityLimit;
  const bool served_ok = served <= kBf16OrthogonalityLimit;
  checks.push_back({name, layer, target, exact, kOrthogonalityLimit, exact_ok, exact_ok ? "" : remedy});
  checks.push_back({name + "_bf16", layer, target, served, kBf16OrthogonalityLimit, served_ok,
                    served_ok ? "" : "after the cast that servers make, " + remedy});
}

}  // namespace

void check_inverse_pair(const Transform& t, int layer, const std::string& target, std::vector<Check>& checks) {
  add_errors("inverse_pair", layer, target, worst_pair_error(t.rotation, t.read_rotation),
             worst_pair_error(as_bf16(t.rotation), as_bf16(t.read_rotation)),
             "the read side does not undo the write side: fit the set again", checks);
}

void check_orthogonality(const Subject& subject, std::vector<Check>& checks) {
  for_each_side(
      subject, checks, [](const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
        if (t.read_rotation.count > 0) return check_inverse_pair(t, layer, side.target, out);
        add_errors("orthogonality", layer, side.target, worst_error(t.rotation), worst_error(as_bf16(t.rotation)),
                   "the inverse of the matrix is not its transpose: fit the set again", out);
      });
}

}  // namespace oscar::verify
