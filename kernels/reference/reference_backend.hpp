// SPDX-License-Identifier: MIT
// The reference as a Backend, for tests: plain loops over packed bytes, slow.
// It also has the sums over tokens that fits are made of, as kernels/backend.hpp names them, and eigenproblems, each by
// its formula in fp64.
#pragma once

#include <memory>
#include <span>

#include "kernels/backend.hpp"
#include "kernels/types.hpp"

namespace oscar::reference {

/// Every operation of kernels/backend.hpp by the plain loops of this folder: what kernels/cpu and kernels/cuda are
/// tested against. Nothing is fast, nothing is parallel: a held sequence of T tokens takes T^2 / 2 dot products a head
/// for every call, in fp64. Non-goal: serving a command; make_backend() does not know it.
[[nodiscard]] std::unique_ptr<Backend> make_reference_backend();

// Every sum adds to what is there already. Shapes and errors are those of the backend's verbs.

/// grams[h] += sum_t row^T row over the x.num_heads / grams.count heads of group h.
void accumulate_grams(HeadsView x, MatrixStack& grams);

/// grams[h] += sum_t max(w, 0) v[t, h]^T v[t, h] and weights[h] += sum_t w, where w = k[t, h] forms[h] k[t, h]^T.
void accumulate_weighted_grams(HeadsView k, const MatrixStack& forms, HeadsView v, MatrixStack& grams,
                               std::span<double> weights);

/// Adds what FisherSums defines, with causal attention and windows inside each sequence.
void accumulate_fisher_sums(const QkvView& qkv, std::span<const SequenceRange> sequences, Windows windows,
                            FisherSums& sums);

// Symmetric eigenproblems by Jacobi's method (1846; Golub and Van Loan, Matrix Computations, section 8.5): plane
// rotations zero one entry after the other until nothing is left beside the diagonal.

/// Solves a symmetric (dim, dim) matrix in fp64; eigenvalues ascend. Throws NumericalError if entries are not finite,
/// or if 60 sweeps do not suffice.
[[nodiscard]] Eigenpairs eigh(std::span<const double> symmetric, int dim);

}  // namespace oscar::reference
