// SPDX-License-Identifier: MIT
#include <algorithm>

#include "verify/checks.hpp"
#include "verify/for_each_side.hpp"
#include "verify/matrix.hpp"

namespace oscar::verify {
namespace {

double worst_error(const MatrixStack& stack) {
  double worst = 0;
  for (int m = 0; m < stack.count; ++m) {
    worst = std::max(worst, orthogonality_error(stack[m], static_cast<std::size_t>(stack.dim)));
  }
  return worst;
}

MatrixStack as_bf16(MatrixStack stack) {
  for (double& x : stack.data) x = round_to_bf16(static_cast<float>(x));
  return stack;
}

}  // namespace

void check_orthogonality(const Subject& subject, std::vector<Check>& checks) {
  for_each_side(
      subject, checks, [](const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
        const double exact = worst_error(t.rotation);
        const double served = worst_error(as_bf16(t.rotation));
        const std::string remedy = "the inverse of the matrix is not its transpose: fit the set again";
        const bool exact_ok = exact <= kOrthogonalityLimit;
        const bool served_ok = served <= kBf16OrthogonalityLimit;
        out.push_back(
            {"orthogonality", layer, side.target, exact, kOrthogonalityLimit, exact_ok, exact_ok ? "" : remedy});
        out.push_back({"orthogonality_bf16", layer, side.target, served, kBf16OrthogonalityLimit, served_ok,
                       served_ok ? "" : "after the cast that servers make, " + remedy});
      });
}

}  // namespace oscar::verify
