// SPDX-License-Identifier: MIT
// Where Q, K and V come from, one layer at a time: our dumps, the published layout, a live model. A stage asks for a
// layer's stream and reads it once or, after rewind(), again (value moments need finished query moments: two passes).
// Sequences never cross chunks. Non-goal: random access.
//
// A dump folder as a QkvSource. Chunks are mapped, one at a time: memory is one chunk, whatever the dump's size.
// Non-goal: dumps at addresses.
//
// It also writes a source of q, k and v as a dump in the published layout: layer_<id>/{q,k,v,seq_lens}/<chunk>.pt (or
// .h5, .safetensors), tensors in the source's type, int32 lengths, chunks from 1, and manifest.json (oscar.dump.v1).
// The folder appears whole or not at all. Memory: what the source holds, and a copy of one chunk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "kernels/rotary.hpp"
#include "kernels/types.hpp"
#include "model/config/identity.hpp"

namespace oscar {

/// Some consecutive tokens of one layer. The views stay valid as long as a copy of the chunk.
struct QkvChunk {
  QkvView view;
  std::shared_ptr<const void> owner;               // of what the views refer to; null: the source itself
  std::vector<SequenceRange> sequences;            // cover the chunk, relative to its first token
  std::string where;                               // for error messages: "dump/layer_3, chunk 7"
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

/// Yields what another stream yields, with QkvView::base_k in float32, and with base_q if with_queries says so. Refers
/// to the stream.
class RowsBeforeRope : public LayerStream {
 public:
  RowsBeforeRope(LayerStream& layer, Rotary rotary, bool with_queries)
      : layer_(layer), rotary_(std::move(rotary)), with_queries_(with_queries) {}

  bool next(QkvChunk& chunk) override;
  bool skip(QkvChunk& chunk) override { return layer_.skip(chunk); }
  void rewind() override { layer_.rewind(); }

 private:
  LayerStream& layer_;
  Rotary rotary_;
  bool with_queries_;
};

/// The same with keys before RoPE in the place of keys, and no queries before it.
class KeysBeforeRope : public RowsBeforeRope {
 public:
  KeysBeforeRope(LayerStream& layer, Rotary rotary) : RowsBeforeRope(layer, std::move(rotary), false) {}
  bool next(QkvChunk& chunk) override {
    if (!RowsBeforeRope::next(chunk)) return false;
    chunk.view.k = std::exchange(chunk.view.base_k, {});
    return true;
  }
};

/// Opens a dump. Throws DataError (see DumpIndex), and UsageError for an address, or if limits name a layer that the
/// dump does not have.
[[nodiscard]] std::unique_ptr<QkvSource> open_dump(const std::filesystem::path& folder, const SourceLimits& limits,
                                                   Status& status);

/// Returns a fingerprint of each layer's files, for every layout that open_dump() reads: of the names, the sizes and
/// the last 4 KB of files, where archives keep their directory with its checksums; "" for a layer without files. It
/// tells whether layers are what they were without reading them, and does not find damage. Throws IoError.
[[nodiscard]] std::map<int, std::string> fingerprint_layers(const std::filesystem::path& dump,
                                                            std::span<const int> layer_ids);

struct DumpSummary {
  DType dtype = DType::kF32;
  std::int64_t layers = 0, chunks = 0, tokens = 0;  // chunks and tokens of each layer
  std::uint64_t bytes = 0;                          // of all files
};

/// format: "pt", "h5" or "safetensors"; throws UsageError for another. replace: an existing folder is swapped out;
/// otherwise it is a UsageError. Throws IoError (for example: disk full), Interrupted between chunks, and what the
/// source throws.
DumpSummary write_dump(QkvSource& source, const std::filesystem::path& folder, const std::string& format, bool replace,
                       Status& status);

}  // namespace oscar
