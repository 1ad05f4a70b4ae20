// SPDX-License-Identifier: MIT
// Checks of the numbers of rotations, without what they belong to: are eigenvalues those of a covariance, and has a
// matrix been through fp8 (e4m3: four bits of exponent, three of mantissa)? A conversion of a whole checkpoint may do
// that. Numbers below the smallest normal one are coarse there, or flushed to zero.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/threads.hpp"
#include "verify/structure/checks.hpp"
#include "verify/structure/objective.hpp"

namespace oscar::verify {

void for_each_side(const RotationSides& sides, std::vector<Check>& checks, const SideCheck& check) {
  for (const RotationSide& side : sides) {
    std::vector<std::vector<Check>> found(side.layers.size());
    parallel_for(found.size(),
                 [&](std::size_t i) { check(side, side.layers[i].layer_id, side.layers[i].transform, found[i]); });
    for (auto& part : found) checks.insert(checks.end(), part.begin(), part.end());
  }
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

void check_fp8(const RotationSides& sides, std::vector<Check>& checks) {
  for_each_side(sides, checks,
                [](const RotationSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
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

void check_spectra(const RotationSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
  if (t.eigenvalues.empty()) {
    out.push_back({"spectrum", layer, side.target, {}, {}, {}, "the set carries no eigenvalues"});
    return;
  }
  const auto dim = static_cast<std::size_t>(t.rotation.dim);
  if (dim == 0 || t.eigenvalues.size() % dim != 0) return;  // readers of sets refuse it
  std::string defect;
  std::size_t lowest_rank = dim;
  for (std::size_t begin = 0; begin < t.eigenvalues.size(); begin += dim) {
    const auto values = std::span(t.eigenvalues).subspan(begin, dim);
    if (defect.empty()) defect = spectrum_defect(values, is_hadamard(side.objective, t));
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

void check_spectrum(const RotationSides& sides, std::vector<Check>& checks) {
  for_each_side(sides, checks, check_spectra);
}

}  // namespace oscar::verify
