// SPDX-License-Identifier: MIT
// The kernels of compare(): what the scores of one query head at one position, and then its outputs, add to
// AttentionErrors. All in fp64, one block of threads a row; a row is one query head at one position.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

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

}  // namespace oscar::cuda
