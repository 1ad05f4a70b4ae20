// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "verify/checks/checks.hpp"
#include "verify/checks/for_each_side.hpp"

namespace oscar::verify {

void check_finite(const Subject& subject, std::vector<Check>& checks) {
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

}  // namespace oscar::verify
