// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "verify/checks/checks.hpp"
#include "verify/checks/for_each_side.hpp"

namespace oscar::verify {
namespace {

/// What is wrong with one spectrum; empty if nothing is.
std::string defect_of(std::span<const double> values, bool constant_allowed) {
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

void check_layer(const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
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
    if (defect.empty()) defect = defect_of(values, is_hadamard(side, t));
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

void check_spectrum(const Subject& subject, std::vector<Check>& checks) { for_each_side(subject, checks, check_layer); }

}  // namespace oscar::verify
