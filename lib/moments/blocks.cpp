// SPDX-License-Identifier: MIT
#include "moments/blocks.hpp"

#include <algorithm>
#include <bit>

namespace oscar {
std::int64_t bytes_per_token(const QkvView& view) {
  return view.q.bytes_per_token() + view.k.bytes_per_token() + view.v.bytes_per_token();
}

BlockCut::BlockCut(const WorkShape& shape, std::int64_t bytes) {
  const std::int64_t least_calls = std::max<std::int64_t>(1, (bytes - 1) / shape.bytes_per_call + 1);
  const auto calls = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(least_calls)));
  call_bytes_ = end_ = std::max<std::int64_t>(1, bytes / calls);
}

BlockCut::End BlockCut::after(const QkvChunk& chunk) {
  const std::int64_t size = std::max<std::int64_t>(chunk.view.q.num_tokens * bytes_per_token(chunk.view), 1);
  bytes_ += size;
  tokens_ += chunk.view.q.num_tokens;
  const std::int64_t nearest = bytes_ + size / 2;  // with the next chunk, a call would end further from where it should
  if (nearest < end_) return End::kNothing;
  end_ = (nearest / call_bytes_ + 1) * call_bytes_;
  if (tokens_ < kBlockTokens) return End::kCall;
  tokens_ = 0;
  return End::kBlock;
}

}  // namespace oscar
