// SPDX-License-Identifier: MIT
// Value types of the backend interface: sequences, windows, the row codec, errors of attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.hpp"

namespace oscar {

/// Tokens [begin, end) of a layer that attend to each other causally.
struct SequenceRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// Q, K and V of the same tokens of one layer, post-RoPE. q.num_heads is a multiple of k.num_heads = v.num_heads.
struct QkvView {
  HeadsView q, k, v;
  [[nodiscard]] QkvView tokens(SequenceRange range) const {
    return {q.tokens(range.begin, range.end), k.tokens(range.begin, range.end), v.tokens(range.begin, range.end)};
  }
};

/// Eigenvalues ascending; columns of `vectors` are the eigenvectors in that order, signs as the solver left them.
struct Eigenpairs {
  std::vector<double> values;   // (dim)
  std::vector<double> vectors;  // (dim, dim), row-major: vectors[i * dim + j] = component i of eigenvector j
};

/// How serving rounds: kServing casts matrices, rows, rotated rows and outputs to bfloat16 as servers do; kExact keeps
/// fp32.
enum class Precision { kServing, kExact };

/// How the clip threshold of a row is found: kSort as prefill kernels do, kBisect as decode kernels do.
enum class ClipSearch { kSort, kBisect };

/// How the affine grid of a group is chosen; kernels/README.md has the formulas. Readers do not see the difference.
enum class Grid {
  kMinMax,       // from the smallest to the largest value, as servers do
  kLeastSquares  // "lsq": fitted to the values, and scaled so that <x, x^> = <x, x>: the logits along x are unbiased
};

/// The codec of one (token, head) row: optional clip over the whole row (min/max only), then affine codes per group.
struct RowCodec {
  /// Number of levels; 4 = INT2.
  int levels = 4;
  /// Channels that share one (scale, zero) pair; 0 = the whole row. Must divide head_dim.
  int group_size = 0;
  /// Threshold = the int(ratio * d)-th smallest |x|; <= 0 switches clipping off.
  double clip_ratio = 0.0;
  ClipSearch clip_search = ClipSearch::kSort;
  Grid grid = Grid::kMinMax;
  friend bool operator==(const RowCodec&, const RowCodec&) = default;
};

/// Quantised rows: codes and the affine map x^ = (code - zero) * scale of each group.
struct QuantizedRows {
  std::vector<std::uint8_t> codes;  // (rows, head_dim), one code a byte
  std::vector<float> scale, zero;   // (rows, head_dim / group_size)
};

/// Which keys stay in bfloat16: the first `sink` and the last `recent` of what a query sees.
/// Query i sees key j exactly if j < sink or j > i - recent.
struct Windows {
  int sink = 64;
  int recent = 256;
  friend bool operator==(const Windows&, const Windows&) = default;
};

/// log(1e-300): probabilities below it count as 1e-300 in a divergence.
inline constexpr double kLowestLogProbability = -690.7755278982137;

/// Sums over the queries of one query head; see docs in kernels/README.md for the metrics they make.
struct AttentionErrors {
  double softmax_kl = 0;    // sum over queries of KL(exact || approximate), nats
  double output_error = 0;  // sum |o - o^|^2
  double output_norm = 0;   // sum |o|^2
  double logit_error = 0;   // sum (e - mean_j e)^2 over causal pairs
  double logit_norm = 0;    // sum (s - mean_j s)^2
  std::int64_t queries = 0;
  std::vector<double> query_kl;  // KL of each query, in order

  void add(const AttentionErrors& other);
};

}  // namespace oscar
