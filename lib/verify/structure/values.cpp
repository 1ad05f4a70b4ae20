// SPDX-License-Identifier: MIT
// Checks of matrices and eigenvalues, without what they belong to: are they finite, is a matrix orthogonal (or the
// inverse of its pair), are eigenvalues those of a covariance, and has a matrix been through fp8 (e4m3: four bits of
// exponent, three of mantissa)? A conversion of a whole checkpoint may do that. Numbers below the smallest normal one
// are coarse there, or flushed to zero.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/threads.hpp"
#include "verify/structure/checks.hpp"
#include "verify/structure/matrix.hpp"
#include "verify/structure/objective.hpp"

namespace oscar::verify {

void for_each_side(const RotationSubject& subject, std::vector<Check>& checks, const SideCheck& check) {
  for (const SubjectSide& side : subject.sides) {
    std::vector<std::vector<Check>> found(side.layers.size());
    parallel_for(found.size(),
                 [&](std::size_t i) { check(side, side.layers[i].first, side.layers[i].second, found[i]); });
    for (auto& part : found) checks.insert(checks.end(), part.begin(), part.end());
  }
}

void check_finite(const RotationSubject& subject, std::vector<Check>& checks) {
  const auto count_bad = [](const std::vector<double>& values) {
    return static_cast<double>(std::count_if(values.begin(), values.end(), [](double x) { return !std::isfinite(x); }));
  };
  for_each_side(
      subject, checks, [&](const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
        const double bad = count_bad(t.rotation.data) + count_bad(t.read_rotation.data) + count_bad(t.mean) +
                           count_bad(t.eigenvalues) + count_bad(t.covariance.data) + count_bad(t.query_covariance.data);
        out.push_back({"finite", layer, side.target, bad, 0.0, bad == 0,
                       bad == 0 ? "" : "the file holds NaN or infinity: fit the set again"});
      });
}

namespace {

constexpr double kSmallestNormal = 0x1p-6;

/// Whether x = m 2^e with a mantissa of 4 bits, or a multiple of 2^-9 below the normal numbers.
bool is_e4m3(double x) {
  const double magnitude = std::abs(x);
  const double unit = magnitude < kSmallestNormal ? 0x1p-9 : std::exp2(std::floor(std::log2(magnitude)) - 3);
  return std::fmod(magnitude, unit) == 0;
}

std::string fp8_defect(std::span<const double> matrix) {
  std::set<double> magnitudes;
  bool zeros = false, subnormal = false, all_e4m3 = true;
  for (const double x : matrix) {
    all_e4m3 = all_e4m3 && is_e4m3(x);
    zeros = zeros || x == 0;
    subnormal = subnormal || (x != 0 && std::abs(x) < kSmallestNormal);
    if (x != 0 && magnitudes.size() < 3) magnitudes.insert(std::abs(x));
  }
  if (magnitudes.size() < 3) return "";  // a constant: Hadamard, permutation
  if (all_e4m3) return "every entry is a number of fp8 (e4m3): the matrix was converted";
  if (zeros && !subnormal)
    return "entries below 2^-6, which are subnormal in fp8 (e4m3), are all zero: they were flushed";
  return "";
}

}  // namespace

void check_fp8(const RotationSubject& subject, std::vector<Check>& checks) {
  for_each_side(subject, checks,
                [](const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
                  std::string defect;
                  for (int m = 0; m < t.rotation.count && defect.empty(); ++m) defect = fp8_defect(t.rotation[m]);
                  out.push_back({"fp8_subnormals", layer, side.target, {}, {}, defect.empty(), defect});
                });
}

namespace {

/// What is wrong with one spectrum; empty if nothing is.
std::string spectrum_defect(std::span<const double> values, bool constant_allowed) {
  const auto finite = [](double x) { return std::isfinite(x); };
  if (!std::all_of(values.begin(), values.end(), finite)) return "an eigenvalue is NaN or infinite";
  const double highest = *std::max_element(values.begin(), values.end());
  if (highest <= 0) return "no eigenvalue is positive";
  if (values.front() < -kEigenvalueTolerance * highest) return "a covariance cannot have negative eigenvalues";
  if (!std::is_sorted(values.begin(), values.end()))
    return "eigenvalues are not ascending, so the permutation is wrong";
  if (!constant_allowed && values.size() > 1 && values.front() >= highest * (1 - kEigenvalueTolerance)) {
    return "all eigenvalues are equal: no data went into this rotation";
  }
  return "";
}

void check_spectra(const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
  if (t.eigenvalues.empty()) {
    out.push_back({"spectrum", layer, side.target, {}, {}, {}, "the set carries no eigenvalues"});
    return;
  }
  const auto dim = static_cast<std::size_t>(t.rotation.dim);
  if (dim == 0 || t.eigenvalues.size() % dim != 0) return;  // check_coverage reports the shape
  std::string defect;
  std::size_t lowest_rank = dim;
  for (std::size_t begin = 0; begin < t.eigenvalues.size(); begin += dim) {
    const auto values = std::span(t.eigenvalues).subspan(begin, dim);
    if (defect.empty()) defect = spectrum_defect(values, is_hadamard(side, t));
    const double zero = kEigenvalueTolerance * *std::max_element(values.begin(), values.end());
    const auto rank = std::count_if(values.begin(), values.end(), [zero](double x) { return x > zero; });
    lowest_rank = std::min(lowest_rank, static_cast<std::size_t>(rank));
  }
  out.push_back({"spectrum", layer, side.target, {}, {}, defect.empty(), defect});
  const auto limit = static_cast<double>(dim) / 2;
  const auto rank = static_cast<double>(lowest_rank);
  out.push_back(
      {"spectrum_rank", layer, side.target, rank, limit, rank >= limit,
       rank >= limit ? "" : "most directions had no data: the rotation is arbitrary there; fit on more tokens"});
}

}  // namespace

void check_spectrum(const RotationSubject& subject, std::vector<Check>& checks) {
  for_each_side(subject, checks, check_spectra);
}

namespace {

/// max |a^T a - I|; infinity if a is not finite.
double orthogonality_error(std::span<const double> a, std::size_t dim) {
  Matrix gram = multiply_transposed(a, a, dim);
  double worst = 0;
  for (std::size_t i = 0; i < dim; ++i) gram[i * dim + i] -= 1.0;
  for (const double x : gram) {
    if (!std::isfinite(x)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(x));
  }
  return worst;
}

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

void check_orthogonality(const RotationSubject& subject, std::vector<Check>& checks) {
  for_each_side(
      subject, checks, [](const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
        if (t.read_rotation.count > 0) return check_inverse_pair(t, layer, side.target, out);
        add_errors("orthogonality", layer, side.target, worst_error(t.rotation), worst_error(as_bf16(t.rotation)),
                   "the inverse of the matrix is not its transpose: fit the set again", out);
      });
}

}  // namespace oscar::verify
