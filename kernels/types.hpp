// SPDX-License-Identifier: MIT
// Value types of the backend interface: sequences, windows, the row codec, errors of attention.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
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
  /// The same queries and keys before RoPE, where somebody made them; else without data.
  HeadsView base_q = {}, base_k = {};
  [[nodiscard]] QkvView tokens(SequenceRange range) const {
    const auto of = [&](const HeadsView& x) { return x.data == nullptr ? x : x.tokens(range.begin, range.end); };
    return {of(q), of(k), of(v), of(base_q), of(base_k)};
  }
};

/// Eigenvalues ascending; columns of `vectors` are the eigenvectors in that order, signs as the solver left them.
struct Eigenpairs {
  std::vector<double> values;   // (dim)
  std::vector<double> vectors;  // (dim, dim), row-major: vectors[i * dim + j] = component i of eigenvector j
};

/// What a cache does to the keys, or values, of a layer before it stores them, and what its readers do. Row vectors;
/// stacks of 1 matrix (d, d), or one per KV head.
///   keys:    k' = (k - mean) rotation,   q' = q read_rotation     q' k'^T = q (k - mean)^T
///   values:  v' = v rotation,            o  = o' read_rotation^T
/// so read_rotation = rotation^-T. Named as in format version 3, where the read side is q_rotation or o_rotation.
struct Transform {
  MatrixStack rotation;
  MatrixStack read_rotation;  // count 0: `rotation` is orthogonal and serves both sides
  std::vector<double> mean;   // of keys: (Hkv, d), or (d) for all heads; empty: none

  [[nodiscard]] const MatrixStack& read() const { return read_rotation.count > 0 ? read_rotation : rotation; }
};

/// What becomes of scores s = q k^T / sqrt(d) before and in the softmax, beside the causal mask.
struct ScoreRule {
  double soft_cap = 0;       // s becomes soft_cap tanh(s / soft_cap); 0: stays
  int reach = 0;             // query i sees key j if i - j < reach; 0: all before it
  std::vector<float> sinks;  // (Hq): a score that takes its share of the softmax and has no value; empty: none

  /// Whether a shift of all scores of a query changes nothing, as with a softmax alone: what centred keys rest on.
  [[nodiscard]] bool ignores_shifts() const { return soft_cap == 0 && sinks.empty(); }
  [[nodiscard]] double capped(double score) const {
    return soft_cap > 0 ? soft_cap * std::tanh(score / soft_cap) : score;
  }
};

/// How serving rounds: kServing casts matrices, rows, rotated rows and outputs to bfloat16 as servers do; kExact keeps
/// fp32.
enum class Precision { kServing, kExact };

/// How the affine grid of a group is chosen; kernels/README.md has the formulas. Readers do not see the difference.
enum class Grid {
  kMinMax,   // from the smallest to the largest value, as servers do
  kLloydMax  // "lloyd-max": OSCAR's published option for 4 levels, thresholds of the best Gaussian quantiser
};

/// "minmax", "lloyd-max".
[[nodiscard]] std::string_view name_of(Grid grid);
/// Throws UsageError that lists the names.
[[nodiscard]] Grid grid_from_name(std::string_view name);

/// The codec of one (token, head) row: optional clip over the whole row, then affine codes per group.
struct RowCodec {
  /// Number of levels; 4 = INT2.
  int levels = 4;
  /// Channels that share one (scale, zero) pair; 0 = the whole row. Must divide head_dim.
  int group_size = 0;
  /// Threshold = the int(ratio * d)-th smallest |x|; <= 0 switches clipping off.
  double clip_ratio = 0.0;
  Grid grid = Grid::kMinMax;
  /// What scale and zero are stored in, after the codes are taken: float32, float16 or bfloat16.
  DType scale_dtype = DType::kF32;
  friend bool operator==(const RowCodec&, const RowCodec&) = default;
};

/// What packed rows of the coded cache have in common, of one layer, KV head and side; kernels/reference/coded_row.hpp
/// defines the rows. All three vectors have the head's dimension, a multiple of 8.
struct CodedFormat {
  std::vector<int> levels;   // powers of two from 1 to 256, descending, equal inside blocks of 8
  std::vector<float> step;   // distance of two levels at scale 1, positive where levels > 1
  std::vector<float> sigma;  // root mean square of the channel, positive where levels > 1
  friend bool operator==(const CodedFormat&, const CodedFormat&) = default;
};

/// How the history of keys, or of values, is read: a row codec, whose clip ratio may differ between KV heads, or rows
/// of the coded cache.
struct HistoryCodec : RowCodec {
  /// The clip ratios of the KV heads, in place of clip_ratio; empty: one ratio for all.
  std::vector<double> head_clip_ratios;
  /// The formats of the KV heads, which the row codec has no part in; null: rows are those of the row codec.
  std::shared_ptr<const std::vector<CodedFormat>> coded;

  HistoryCodec() = default;
  /// Makes a history codec of a row codec; not explicit, since every row codec is one.
  HistoryCodec(const RowCodec& codec, std::vector<double> head_ratios = {})  // NOLINT(google-explicit-constructor)
      : RowCodec(codec), head_clip_ratios(std::move(head_ratios)) {}

  /// The codec of the rows of one KV head.
  [[nodiscard]] RowCodec of_head(int kv_head) const;
  friend bool operator==(const HistoryCodec&, const HistoryCodec&) = default;
};

/// Which keys stay in bfloat16: the first `sink` and the last `recent` of what a query sees.
/// Query i sees key j exactly if j < sink or j > i - recent.
struct Windows {
  int sink = 64;
  int recent = 256;
  friend bool operator==(const Windows&, const Windows&) = default;
};

/// Queries and keys weighted by what softmax feels of an error in a score, f_ij = p_ij (1 - p_ij) over the keys j of
/// the history of query i (j >= sink and j <= i - recent): the second order of the softmax KL.
struct FisherSums {
  MatrixStack query;            // (Hkv, d, d): sum_i (sum_j f_ij) q_i^T q_i, over the g query heads of a KV head too
  MatrixStack key;              // (Hkv, d, d): sum_j (sum_i f_ij) k_j^T k_j
  std::vector<double> key_sum;  // (Hkv, d): sum_j (sum_i f_ij) k_j
  std::vector<double> weight;   // (Hkv): sum_ij f_ij
  /// (Hkv, d_v, d_v): sum_j (sum_i p_ij^2) v_j^T v_j, what an error of a value is multiplied by; without matrices it is
  /// not taken.
  MatrixStack value;
  /// query of QkvView::base_q, and key and key_sum of base_k, weighted likewise; without matrices they are not taken.
  MatrixStack base_query, base_key;
  std::vector<double> base_key_sum;

  FisherSums() = default;
  FisherSums(int num_kv_heads, int head_dim)
      : query(num_kv_heads, head_dim),
        key(num_kv_heads, head_dim),
        key_sum(static_cast<std::size_t>(num_kv_heads) * static_cast<std::size_t>(head_dim)),
        weight(static_cast<std::size_t>(num_kv_heads)) {}

  /// Asks for the sums before RoPE, too: of keys, and perhaps of queries.
  void take_base(bool queries) {
    base_key = MatrixStack(key.count, key.dim), base_key_sum.resize(key_sum.size());
    if (queries) base_query = base_key;
  }
};

/// log(1e-300): probabilities below it count as 1e-300 in a divergence.
inline constexpr double kLowestLogProbability = -690.7755278982137;

/// A key of the history that gets at least this share of a query's attention is a needle of that query.
inline constexpr double kNeedleShare = 0.05;

/// Sums over the queries of one query head; see docs in kernels/README.md for the metrics they make.
struct AttentionErrors {
  double softmax_kl = 0;     // sum over queries of KL(exact || approximate), nats
  double output_error = 0;   // sum |o - o^|^2
  double output_norm = 0;    // sum |o|^2
  double output_cosine = 0;  // sum <o, o^> / (|o| |o^|), 0 where one of them is zero
  double logit_error = 0;    // sum (e - mean_j e)^2 over causal pairs
  double logit_norm = 0;     // sum (s - mean_j s)^2
  double needle_mass = 0;    // sum of the exact probabilities of needles
  double needle_kept = 0;    // sum of what is left of them: min(p, p^)
  std::int64_t queries = 0;
  std::vector<double> query_kl;  // KL of each query, in order

  void add(const AttentionErrors& other);
};

}  // namespace oscar
