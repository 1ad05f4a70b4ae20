// SPDX-License-Identifier: MIT
// Each operation of a backend, declared once: on which cases of cases.json it runs, what it gives, and how that is
// compared. kernels/cpu and kernels/cuda are held to kernels/reference, and kernels/cuda to kernels/cpu on large cases.
// Each function prints one line per measurement, and fails the running test case beyond what cases.json allows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "conformance/samples.hpp"

namespace oscar::test {

/// How results are compared: the largest distance of all parts counts.
enum class Nearness {
  kBits,      // values whose bits differ
  kNorm,      // of the Frobenius norm
  kLargest,   // of the largest entry
  kEach,      // of each entry
  kAbsolute,  // as it is
  kResidual,  // the result is a distance itself
};
/// Values that are compared in one way.
struct Part {
  Nearness by;
  std::vector<double> values;
};
using Parts = std::vector<Part>;

/// Two backends; `expected` says what is right.
struct Pair {
  Backend& expected;
  Backend& got;
  Tier tier;
  std::string kind = {};  // "CPU", or "fp32" for GPUs whose moments are fp32 products: may have tolerances of its own

  /// Runs the operation on both and compares.
  void check(const std::string& what, const Shape& shape, const std::function<Parts(Backend&)>& run) const;
};

// Sums over tokens.
void grams(const Pair& on);
void weighted_grams(const Pair& on);
void grams_of_a_whole_layer(const Pair& on);
void fisher_sums(const Pair& on);
// Row by row.
void quantize(const Pair& on);
void quantize_coded_rows(const Pair& on);
// Held sequences, for all codecs of codecs_for().
void attend(const Pair& on);
void attend_by_score_rules(const Pair& on);
void compare(const Pair& on);
void compare(const Pair& on, const Sequence& s, Precision precision, const std::vector<HistoryCodecs>& candidates,
             Windows windows);
void row_errors(const Pair& on);
/// Eigenproblems, by what defines their solutions and by their values.
void eigenpairs(const Pair& on);
void eigenpairs(const Pair& on, const MatrixStack& matrices);

}  // namespace oscar::test
