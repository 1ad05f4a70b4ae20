// SPDX-License-Identifier: MIT
// One layer of a running model as a LayerStream: each sequence's Q, K and V is kept until the layer is done.
#pragma once

#include <string>
#include <vector>

#include "dump/source.hpp"

namespace oscar::verify {

class CapturedLayer : public LayerStream {
 public:
  explicit CapturedLayer(std::size_t num_sequences) : sequences_(num_sequences) {}

  /// Copies; may be called concurrently for different sequences.
  void capture(std::size_t sequence, const QkvView& qkv);
  bool next(QkvChunk& chunk) override;
  void rewind() override { next_ = 0; }

 private:
  struct Rows {
    Tensor q, k, v;
  };
  std::vector<Rows> sequences_;
  std::size_t next_ = 0;
};

}  // namespace oscar::verify
