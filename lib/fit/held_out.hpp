// SPDX-License-Identifier: MIT
// Calibration data in two parts: what candidates are fitted on, and what they are judged on. Every third sequence, or
// the last of two, is held out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/errors.hpp"
#include "dump/source.hpp"

namespace oscar {

/// There is not enough to fit on one part and to judge on another.
struct TooLittleData : DataError {
  using DataError::DataError;
};

/// Throws TooLittleData if there are fewer than two sequences.
class HeldOutSplit {
 public:
  explicit HeldOutSplit(std::int64_t num_sequences);
  [[nodiscard]] bool held_out(std::size_t sequence) const { return sequence % stride_ == stride_ - 1; }

 private:
  std::size_t stride_;
};

/// The sequences of a layer that are held out, or the others, in order. `whole` must outlive it.
class PartStream : public LayerStream {
 public:
  PartStream(LayerStream& whole, HeldOutSplit split, bool held_out);
  bool next(QkvChunk& chunk) override;
  bool skip(QkvChunk& chunk) override;
  void rewind() override;

 private:
  void read_current();

  LayerStream& whole_;
  HeldOutSplit split_;
  bool held_out_;
  QkvChunk current_;
  std::size_t chunks_ = 0;                        // of the layer, up to the current one
  std::size_t next_in_chunk_ = 0, sequence_ = 0;  // of the current chunk; of the layer
};

}  // namespace oscar
