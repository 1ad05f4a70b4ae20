// SPDX-License-Identifier: MIT
// OptR (arXiv 2608.02691) on top of OSCAR's rotations: the mean key of a head leaves all its keys, and the rotation of
// a head becomes R = R_oscar exp(A - A^T), where Adam looks for the A with the smallest loss (loss.hpp) of calibration
// sequences. Heads whose loss on held-out sequences is no smaller keep R_oscar. Stored as clipped INT2 rows.
//   R_oscar = U H, U the eigenvectors of sum q^T q (keys), of sum_t max(w_t, 0) v_t^T v_t with w_t = k_t C k_t^T
//   (values); its permutation changes nothing within one group a row
#pragma once

#include <vector>

#include "codec/kv_method.hpp"

namespace oscar {

/// What the method is fitted on: one layer's rows of text that it is not judged on.
struct OptrData {
  std::vector<QkvView> sequences;
  /// W_O^T W_O / hidden_size of each query head, (Hq, d_v, d_v).
  MatrixStack output_forms;
};

struct OptrOptions {
  Windows windows;
  int steps = 80;
  double rate = 0.02;
  /// How many of a sequence's last queries each query head is judged by.
  std::int64_t queries = 64;
  /// A step looks at so many sequences, in turn: all of them would take time in proportion.
  std::size_t sequences_per_step = 4;
};

/// The mean loss of one side of one KV head over the held-out sequences.
struct OptrHead {
  double before = 0, after = 0;
  [[nodiscard]] bool kept() const { return after < before; }
};

struct OptrFit {
  KvLayer layer;
  std::vector<OptrHead> keys, values;  // of each KV head
};

/// Whether OptR can use a sequence of so many tokens: some are outside the windows.
[[nodiscard]] bool longer_than_windows(std::int64_t tokens, Windows windows);

/// The last quarter of the sequences, one at least, is held out. Throws DataError unless two are longer than the
/// windows.
[[nodiscard]] OptrFit fit_optr(const OptrData& data, const OptrOptions& options, Backend& backend);

}  // namespace oscar
