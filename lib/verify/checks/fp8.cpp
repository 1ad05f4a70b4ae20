// SPDX-License-Identifier: MIT
// Has a matrix been through fp8 (e4m3: four bits of exponent, three of mantissa)? A conversion of a whole checkpoint
// may do that. Numbers below the smallest normal one are coarse there, or flushed to zero.
#include <algorithm>
#include <cmath>
#include <set>

#include "verify/checks/checks.hpp"
#include "verify/checks/for_each_side.hpp"

namespace oscar::verify {
namespace {

constexpr double kSmallestNormal = 0x1p-6;

/// Whether x = m 2^e with a mantissa of 4 bits, or a multiple of 2^-9 below the normal numbers.
bool is_e4m3(double x) {
  const double magnitude = std::abs(x);
  const double unit = magnitude < kSmallestNormal ? 0x1p-9 : std::exp2(std::floor(std::log2(magnitude)) - 3);
  return std::fmod(magnitude, unit) == 0;
}

std::string defect_of(std::span<const double> matrix) {
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

void check_fp8(const Subject& subject, std::vector<Check>& checks) {
  for_each_side(subject, checks,
                [](const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
                  std::string defect;
                  for (int m = 0; m < t.rotation.count && defect.empty(); ++m) defect = defect_of(t.rotation[m]);
                  out.push_back({"fp8_subnormals", layer, side.target, {}, {}, defect.empty(), defect});
                });
}

}  // namespace oscar::verify
