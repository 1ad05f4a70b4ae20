// SPDX-License-Identifier: MIT
// Where Q, K and V come from, one layer at a time: our dumps, the published layout, a live model. A stage asks for a
// layer's stream and reads it once or, after rewind(), again (value moments need finished query moments: two passes).
// Sequences never cross chunks. Non-goals: random access, writing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/rotary.hpp"
#include "kernels/types.hpp"
#include "model/config/identity.hpp"

namespace oscar {

/// Some consecutive tokens of one layer. The views stay valid as long as a copy of the chunk.
struct QkvChunk {
  QkvView view;
  std::shared_ptr<const void> owner;               // of what the views refer to; null: the source itself
  std::vector<SequenceRange> sequences;            // cover the chunk, relative to its first token
  std::string where;                               // for error messages: file or "layer 3, sequence 7"
  std::vector<std::int64_t> first_positions = {};  // of the sequences; empty: each begins at 0
  const char* remedy = "dump this layer again";    // of errors in its rows
};

class LayerStream {
 public:
  virtual ~LayerStream() = default;
  /// Fills `chunk` and returns true, or returns false at the end. Throws DataError.
  virtual bool next(QkvChunk& chunk) = 0;
  /// Goes on by a chunk as next() does, without its rows: the views may have no data.
  virtual bool skip(QkvChunk& chunk) { return next(chunk); }
  /// Back to the first chunk.
  virtual void rewind() = 0;
};

class QkvSource {
 public:
  virtual ~QkvSource() = default;
  /// Unknown fields are empty.
  [[nodiscard]] const ModelIdentity& model() const { return model_; }
  [[nodiscard]] const CalibrationData& calibration() const { return calibration_; }
  /// Ascending; may be sparse (hybrid models).
  [[nodiscard]] const std::vector<int>& layer_ids() const { return layer_ids_; }
  /// Layers must be opened in ascending order; a live model cannot go back.
  [[nodiscard]] virtual std::unique_ptr<LayerStream> open(int layer_id) = 0;

 protected:
  // For the constructors of sources to fill.
  ModelIdentity model_;
  CalibrationData calibration_;
  std::vector<int> layer_ids_;
};

/// Returns how many tokens each sequence of a layer has. Leaves the stream at its end.
[[nodiscard]] std::vector<std::int64_t> sequence_lengths(LayerStream& stream);

/// Layers side by side, as many as a backend can use: task(i, stream of ids[i]) on up to `lanes` threads, which may use
/// parallel_for. Streams are opened in order, as a live model demands. Throws what a task threw first; the others end
/// at their next throw_if_interrupted().
void for_each_layer(QkvSource& source, std::span<const int> ids, int lanes,
                    const std::function<void(std::size_t, std::unique_ptr<LayerStream>)>& task);

/// What part of a source to use.
struct SourceLimits {
  /// Tokens per layer at most; the last sequence is cut to fit. 0 = all.
  std::int64_t max_tokens = 30000;
  /// Sequences per layer at most. 0 = all.
  std::int64_t max_sequences = 0;
  /// The layers to use; empty: all.
  std::vector<int> layers;
};

/// Returns CalibrationData::blocks of sequences of which limits leave so many tokens, in order; a block that is cut is
/// not there. Empty if `whole` has other sequences.
[[nodiscard]] std::vector<std::string> blocks_within(std::vector<std::string> whole,
                                                     std::span<const std::int64_t> lengths);

/// Yields what another stream yields, with QkvView::base_q and base_k in float32. Refers to the stream.
class RowsBeforeRope : public LayerStream {
 public:
  RowsBeforeRope(LayerStream& layer, Rotary rotary) : layer_(layer), rotary_(std::move(rotary)) {}

  bool next(QkvChunk& chunk) override { return next(chunk, true); }
  bool skip(QkvChunk& chunk) override { return layer_.skip(chunk); }
  void rewind() override { layer_.rewind(); }

 protected:
  bool next(QkvChunk& chunk, bool with_queries);

 private:
  LayerStream& layer_;
  Rotary rotary_;
};

/// The same with keys before RoPE in the place of keys, and no queries before it.
class KeysBeforeRope : public RowsBeforeRope {
 public:
  using RowsBeforeRope::RowsBeforeRope;
  bool next(QkvChunk& chunk) override {
    if (!RowsBeforeRope::next(chunk, false)) return false;
    chunk.view.k = std::exchange(chunk.view.base_k, {});
    return true;
  }
};

}  // namespace oscar
