// SPDX-License-Identifier: MIT
// The rows of a layer with its keys as they were before RoPE: turned back by their positions.
#pragma once

#include <utility>

#include "dump/source.hpp"
#include "kernels/rotary.hpp"

namespace oscar {

/// Yields what another stream yields, but keys are turned back, in float32. Refers to the stream.
class KeysBeforeRope : public LayerStream {
 public:
  KeysBeforeRope(LayerStream& layer, Rotary rotary) : layer_(layer), rotary_(std::move(rotary)) {}

  bool next(QkvChunk& chunk) override;
  bool skip(QkvChunk& chunk) override { return layer_.skip(chunk); }
  void rewind() override { layer_.rewind(); }

 private:
  LayerStream& layer_;
  Rotary rotary_;
};

}  // namespace oscar
