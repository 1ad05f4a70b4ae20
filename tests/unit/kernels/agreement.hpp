// SPDX-License-Identifier: MIT
// Whether a backend agrees with another one, operation by operation: kernels/cpu and kernels/cuda with
// kernels/reference, and kernels/cuda with kernels/cpu where the reference would take too long. Each function runs both
// on the same random input, prints one line per measurement, and fails the running test case beyond what `allowed`
// says.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "unit/kernels/samples.hpp"

namespace oscar::test {

/// How far results may be apart; kernels/README.md has the same figures.
struct Agreement {
  double sums = 1e-12;       // grams, weighted, of outputs, residual: of the Frobenius norm; weights: of the largest
  double fisher = 1e-11;     // of the largest entry
  double eigen = 1e-11;      // values, A V - V values, V^T V - 1: of the largest eigenvalue
  double rotate_ulps = 1;    // units in the last place of the result's type
  double attend = 1e-4;      // of the largest output; serving: one bfloat16 unit of it, which is 2^-7 of it at most
  double compare = 1e-6;     // of each sum
  double row_errors = 1e-7;  // of each sum
};
/// The CPU's fp64 sums of errors are much nearer.
inline constexpr Agreement kOfCpu{.compare = 1e-9};
inline constexpr Agreement kOfGpu{};
/// Of GPUs whose moments are fp32 products.
inline constexpr Agreement kOfFp32Products{.sums = 2e-7};

/// Two backends; `expected` says what is right.
struct Pair {
  Backend& expected;
  Backend& got;
  Agreement allowed;
  std::string name = {};  // in measurements, behind that of the operation
};

// Sums over tokens.
void check_grams(const Pair& on, const Shape& shape);
void check_weighted_grams(const Pair& on, const Shape& shape);
void check_fisher_sums(const Pair& on, const Shape& shape);
/// What `add` adds to `sums`, on both; both begin with the same, so that a sum that is overwritten shows.
void check_sum(const Pair& on, const std::string& what, const Shape& shape, MatrixStack sums, double tolerance,
               const std::function<void(Backend&, MatrixStack&)>& add);

// Row by row.
void check_rotation(const Pair& on, const Shape& shape);
/// To the bit.
void check_codec(const Pair& on, const Shape& shape, const RowCodec& codec, Precision precision);
/// To the bit, through packed rows of the coded cache; rows of several formats.
void check_coded_rows(const Pair& on, const Shape& shape);

// Held sequences, for all codecs of codecs_for().
void check_attend(const Pair& on, const Sequence& s, Precision precision, bool rotated,
                  const std::vector<Windows>& all_windows);
void check_compare(const Pair& on, const Sequence& s, Precision precision, const std::vector<Windows>& all_windows);
void check_compare(const Agreement& allowed, const Sequence& s, const std::vector<std::vector<AttentionErrors>>& got,
                   const std::vector<std::vector<AttentionErrors>>& expected);
void check_row_errors(const Pair& on, const Sequence& s, bool rotated, Windows windows);

/// Eigenproblems, by what defines their solutions and by their values.
void check_eigenpairs(const Pair& on, const MatrixStack& matrices);

}  // namespace oscar::test
