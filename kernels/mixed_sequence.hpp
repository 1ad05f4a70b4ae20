// SPDX-License-Identifier: MIT
// One sequence of one layer as a mixed-precision server holds it: queries, keys and values in transformed coordinates,
// kept where the backend computes. The history is read through codecs that each call names, so that many candidates can
// be judged on the same rows; the windows are read as stored.
//   stored = transformed rows, see Transform (rounded as Precision says),   history = decode(encode(stored))
// Non-goals: growing, paging.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar {

/// What to hold. Views, transforms and the score rule must outlive the MixedSequence.
struct SequenceInput {
  /// Native rows; q may hold fewer tokens than k and v.
  QkvView qkv;
  /// Position of each query among the keys, ascending; empty: query i stands at key i.
  std::span<const std::int64_t> query_positions;
  /// How rows are transformed before they are stored. Null: they are stored as they are.
  const Transform* key = nullptr;
  const Transform* value = nullptr;
  Precision precision = Precision::kServing;
  /// What a codec that sees more than one row made of k and v, native float32 rows. Where given (data is not null),
  /// there is no transform, and the history is these rows whatever codec a call names.
  HeadsView decoded_k = {}, decoded_v = {};
  /// What becomes of scores before and in the softmax, for attend() alone. Null: a softmax alone. Centred keys
  /// (Transform::mean) shift scores as in a server, which does not add q mean^T back.
  const ScoreRule* scores = nullptr;
};

/// The codecs through which the history is read; none: as the windows store it.
struct HistoryCodecs {
  std::optional<HistoryCodec> key, value;
  friend bool operator==(const HistoryCodecs&, const HistoryCodecs&) = default;
};

/// Energies of one KV head over the tokens that end up quantised: of the native rows, and of what the cache adds to
/// them (measured in stored coordinates where the rotation is orthogonal, which keeps lengths).
struct RowErrors {
  double key_signal = 0, key_noise = 0, value_signal = 0, value_noise = 0;

  void add(const RowErrors& other) {
    key_signal += other.key_signal, key_noise += other.key_noise;
    value_signal += other.value_signal, value_noise += other.value_noise;
  }
};

class MixedSequence {
 public:
  virtual ~MixedSequence() = default;

  /// out (num_queries, Hq, d_v), in native coordinates.
  virtual void attend(const HistoryCodecs& codecs, Windows windows, std::span<float> out) = 0;

  /// Errors against exact causal attention over the native rows: [candidate][query head]. Throws std::logic_error if
  /// the input has a score rule.
  [[nodiscard]] virtual std::vector<std::vector<AttentionErrors>> compare(std::span<const HistoryCodecs> candidates,
                                                                          Windows windows) = 0;

  /// Returns the energies over the tokens [sink, num_keys - recent), by KV head.
  [[nodiscard]] virtual std::vector<RowErrors> row_errors(const HistoryCodecs& codecs, Windows windows) = 0;
};

/// Backend::compare() takes several of these: sequences that are compared with the same exact attention.
struct ComparedSequence {
  MixedSequence* sequence = nullptr;
  std::span<const HistoryCodecs> candidates;
  Windows windows;
};

}  // namespace oscar
