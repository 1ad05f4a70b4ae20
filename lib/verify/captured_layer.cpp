// SPDX-License-Identifier: MIT
#include "verify/captured_layer.hpp"

#include <cstring>

namespace oscar::verify {
namespace {

Tensor copy_of(HeadsView view) {
  Tensor tensor(view.dtype, {view.num_tokens, view.num_heads, view.head_dim});
  std::memcpy(tensor.data.data(), view.data, tensor.data.size());
  return tensor;
}

}  // namespace

void CapturedLayer::capture(std::size_t sequence, const QkvView& qkv) {
  sequences_[sequence] = {copy_of(qkv.q), copy_of(qkv.k), copy_of(qkv.v)};
}

bool CapturedLayer::next(QkvChunk& chunk) {
  if (next_ >= sequences_.size()) return false;
  const Rows& rows = sequences_[next_];
  const std::string where = "sequence " + std::to_string(next_);
  chunk.view = {heads_view(rows.q, where), heads_view(rows.k, where), heads_view(rows.v, where)};
  chunk.sequences = {{0, chunk.view.q.num_tokens}};
  chunk.where = where;
  ++next_;
  return true;
}

}  // namespace oscar::verify
