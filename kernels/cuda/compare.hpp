// SPDX-License-Identifier: MIT
// One pass of compare(): every candidate and KV head of it in the same few launches, all in fp64. What does not depend
// on a codec is computed once, and what a codec determines once for all candidates that share it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/compare_plan.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/held_sequence.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

// The kernels of compare(): what the scores of one query head at one position, and then its outputs, add to
// AttentionErrors. All in fp64, one block of threads a row; a row is one query head at one position.

/// A block of queries. Score buffers are (heads, …, keys) with room for `capacity` rows a head, `stride` scores a row;
/// buffers of several codecs or candidates follow each other.
struct QueryBlock {
  const std::int64_t* positions;  // of its queries
  int g;                          // rows of a query
  int heads;                      // KV heads
  std::int64_t rows, capacity;    // rows of a head: queries * g
  std::int64_t keys, stride;      // no query of the block sees key `keys` or a later one
  Windows windows;
};

/// Results of a pass, (heads, total) each, where total counts the rows of all blocks; of several codecs or candidates
/// one after the other.
struct PassErrors {
  double *logit_norm, *output_norm, *needle_mass;
  double *kl, *logit_error, *needle_kept;  // by key codec
  double *output_error, *output_cosine;    // by candidate
  std::int64_t total;
  std::int64_t first_row;  // of the block
};

/// What the exact scores of a row come to: (heads, capacity).
struct ExactRow {
  double highest, log_sum;
};

/// scores -> probabilities (0 for keys that the query does not see), rows, logit_norm.
void exact_softmax(const Context& context, const QueryBlock& block, const double* scores, double* probabilities,
                   ExactRow* rows, const PassErrors& errors);

/// What becomes of the scores of each of `codecs` key codecs. Scores with stored keys (the same for all) and with
/// decoded ones become weights: those of keys in a window lie in window_weights, the others in place of the history's
/// scores, 0 elsewhere. They also give kl, logit_error, needle_mass and needle_kept.
struct MixedScores {
  const double *exact, *probabilities;
  const ExactRow* rows;
  const double* window;
  double *history, *window_weights;
};
void mixed_softmax(const Context& context, const QueryBlock& block, const MixedScores& scores, std::size_t codecs,
                   const PassErrors& errors);

/// exact (heads, capacity, dim), mixed (candidates, heads, capacity, dim) -> output_norm, output_error,
/// output_cosine.
void output_errors(const Context& context, const QueryBlock& block, const double* exact, const double* mixed, int dim,
                   std::size_t candidates, const PassErrors& errors);

/// (copies, heads) dense matrices of one size; a copy for each codec or candidate.
class Matrices {
 public:
  Matrices(const Context& context, std::size_t copies, int heads, std::int64_t rows, std::int64_t columns)
      : heads_(static_cast<std::size_t>(heads)),
        size_(rows * columns),
        values_(context, copies * heads_ * static_cast<std::size_t>(size_)) {}

  [[nodiscard]] double* data() { return values_.data(); }
  [[nodiscard]] double* at(std::size_t head, std::size_t copy = 0) {
    return values_.data() + static_cast<std::int64_t>(copy * heads_ + head) * size_;
  }
  [[nodiscard]] std::int64_t matrix_size() const { return size_; }
  [[nodiscard]] DeviceBuffer<double>& values() { return values_; }

 private:
  std::size_t heads_;
  std::int64_t size_;
  DeviceBuffer<double> values_;
};

/// Keys or values, a matrix (keys, d) a head: native, as stored, and as each codec gives them back.
class PassSide {
 public:
  PassSide(const Context& context, const HeldRows& rows, const Part& part, CodecChoice choice, Precision precision);

  [[nodiscard]] const CodecChoice& choice() const { return choice_; }
  [[nodiscard]] const double* native(std::size_t head) { return native_.at(head); }
  [[nodiscard]] const double* stored(std::size_t head) { return stored_.at(head); }
  [[nodiscard]] const double* history(std::size_t head, std::size_t codec) {
    return choice_.codecs[codec] ? decoded_.at(head, place_[codec]) : stored_.at(head);
  }

 private:
  CodecChoice choice_;
  std::vector<std::size_t> place_;  // of each codec in decoded_
  Matrices native_, stored_, decoded_;
};

class ComparePassRun {
 public:
  /// `candidates`: those of the pass.
  ComparePassRun(const Context& context, const HeldData& held, std::span<const HistoryCodecs> candidates,
                 Windows windows, const ComparePass& pass);

  /// Queries [first, first + count), count <= pass.block.
  void run(std::int64_t first, std::int64_t count);
  /// Adds the sums of all blocks, after the last of them. errors: of each candidate of the pass, [query head of the
  /// sequence].
  void add_to(std::span<std::vector<AttentionErrors>> errors) const;

 private:
  void list_products(std::size_t head);
  void add_scores(const QueryBlock& block, std::int64_t first, const PassErrors& errors);
  void add_outputs(const QueryBlock& block, const PassErrors& errors);
  [[nodiscard]] PassErrors errors_at(double* values, std::int64_t first_row) const;

  const Context& context_;
  const HeldData& held_;
  const Windows windows_;
  const ComparePass pass_;
  const std::int64_t g_, capacity_, total_;  // rows of a query; of a head in a block, and in all
  const std::int64_t stride_;                // of rows of scores
  PassSide key_, value_;
  const std::size_t key_codecs_, candidates_;
  Matrices native_q_, stored_q_;                                         // (capacity, d)
  Matrices scores_, probabilities_, window_, history_, window_weights_;  // (capacity, stride)
  Matrices outputs_, mixed_outputs_, restored_;                          // (capacity, d_v)
  DeviceBuffer<ExactRow> rows_;
  DeviceBuffer<double> results_;
  ProductTable products_;
};

}  // namespace oscar::cuda
