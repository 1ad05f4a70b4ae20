// SPDX-License-Identifier: MIT
// The rows of a layer, and its queries and keys as they were before RoPE: turned back by their positions.
#pragma once

#include <utility>

#include "dump/source.hpp"
#include "kernels/rotary.hpp"

namespace oscar {

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
