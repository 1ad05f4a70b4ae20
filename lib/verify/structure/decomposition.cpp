// SPDX-License-Identifier: MIT
// Is the rotation made of the eigenvectors of the covariance it claims? With R = compose(U): U^T Sigma U =
// diag(eigenvalues). A swapped, transposed, stale or differently composed matrix fails.
#include <algorithm>
#include <cmath>

#include "verify/structure/checks.hpp"
#include "verify/structure/examine.hpp"
#include "verify/structure/for_each_side.hpp"
#include "verify/structure/objective.hpp"
#include "verify/structure/stretch.hpp"
#include "verify/structure/uncompose.hpp"

namespace oscar::verify {
namespace {

const SideTransform* find_layer(const SubjectSide& side, int layer) {
  for (const auto& [id, transform] : side.layers) {
    if (id == layer) return &transform;
  }
  return nullptr;
}

void check_constant(const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
  const std::string name = is_hadamard(side, t) ? "hadamard" : composition_name(side.objective);
  const auto expected = constant_rotation(name, static_cast<std::size_t>(t.rotation.dim));
  if (!expected) {
    out.push_back({"composition", layer, side.target, {}, kConstantLimit, {}, "no known constant for this head_dim"});
    return;
  }
  double worst = 0;
  for (int m = 0; m < t.rotation.count; ++m) {
    for (std::size_t i = 0; i < expected->size(); ++i)
      worst = std::max(worst, std::abs(t.rotation[m][i] - (*expected)[i]));
  }
  const bool ok = worst <= kConstantLimit;
  out.push_back(
      {"composition", layer, side.target, worst, kConstantLimit, ok, ok ? "" : "this is not \"" + name + "\""});
}

Check unknown(const std::string& name, int layer, const SubjectSide& side, const std::string& message) {
  return {name, layer, side.target, {}, {}, {}, message};
}

constexpr const char* kNoCovariance = "the set carries no covariance: give --dump, --stats or --model";

/// Data has told what the set alone could not.
void forget_unknown(std::vector<Check>& checks, const DataCovariance& data) {
  std::erase_if(checks, [&](const Check& check) {
    return check.name == "decomposition" && check.message == kNoCovariance && check.layer == data.layer_id &&
           check.target == data.target;
  });
}

/// Measured figures are what speaks for such a set.
constexpr const char* kRefined = "the basis was turned by descent (--refine): no covariance explains it";

bool usable(const SideTransform& t, const MatrixStack& covariance) {
  const bool sizes = covariance.dim == t.rotation.dim && covariance.count > 0 &&
                     t.eigenvalues.size() == static_cast<std::size_t>(t.rotation.count) * t.rotation.dim;
  return sizes && frobenius(covariance.data) > 0;
}

}  // namespace

void check_decomposition(const Subject& subject, std::vector<Check>& checks) {
  const auto stored = [](const SubjectSide&, int, const SideTransform& t) { return diagonalised_covariance(t); };
  for_each_side(
      subject, checks, [&](const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
        if (is_refined(side, t)) {
          out.push_back(unknown("decomposition", layer, side, kRefined));
          return;
        }
        if (has_constant_rotation(side, t)) return check_constant(side, layer, t, out);
        if (!usable(t, t.covariance) || (is_stretch(t) && !stretch_record(t))) {
          out.push_back(unknown("decomposition", layer, side, kNoCovariance));
          return;
        }
        const auto finding = examine(subject, stored, side, layer, t, true, kDecompositionLimit);
        if (!finding) {
          out.push_back(unknown("decomposition", layer, side, "\"" + side.objective + "\" cannot be taken apart"));
          return;
        }
        out.push_back({"decomposition", layer, side.target, finding->error, kDecompositionLimit,
                       finding->error <= kDecompositionLimit, finding->message});
      });
}

void check_decomposition_on_data(const Subject& subject, const std::vector<DataCovariance>& data,
                                 std::vector<Check>& checks) {
  // Other readings are judged on the data, too.
  const auto of_data = [&](const SubjectSide& side, int layer, const SideTransform&) {
    const auto found = std::find_if(data.rbegin(), data.rend(), [&](const DataCovariance& d) {
      return d.layer_id == layer && d.target == side.target;
    });
    return found == data.rend() ? MatrixStack() : found->covariance;
  };
  for (const DataCovariance& d : data) {
    for (const SubjectSide& side : subject.sides) {
      const SideTransform* t = find_layer(side, d.layer_id);
      if (t == nullptr || side.target != d.target || has_constant_rotation(side, *t) || !usable(*t, d.covariance))
        continue;
      if (is_stretch(*t) || is_refined(side, *t))
        continue;  // it diagonalises what is stored, not a covariance of the data
      const double limit = d.same_tokens ? kSameTokensLimit : kDisorderLimit;
      const auto finding = examine(subject, of_data, side, d.layer_id, *t, d.same_tokens, limit);
      if (!finding) {
        checks.push_back(
            unknown("decomposition_on_data", d.layer_id, side, "\"" + side.objective + "\" cannot be taken apart"));
        continue;
      }
      std::optional<bool> ok = finding->error <= limit;
      std::string message = finding->message;
      if (!*ok && !d.same_tokens && d.tokens < std::int64_t{kMinTokensPerDim} * t->rotation.dim) {
        ok = std::nullopt;
        message = "too few tokens to tell: give at least " + std::to_string(kMinTokensPerDim * t->rotation.dim);
      }
      if (ok) forget_unknown(checks, d);
      checks.push_back({"decomposition_on_data", d.layer_id, side.target, finding->error, limit, ok, message});
    }
  }
}

}  // namespace oscar::verify
