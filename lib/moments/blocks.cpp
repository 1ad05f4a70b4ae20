// SPDX-License-Identifier: MIT
#include "moments/blocks.hpp"

#include <algorithm>
#include <bit>

namespace oscar {
namespace {

/// Of each chunk, and of the end.
std::vector<std::int64_t> tokens_before_chunks(LayerStream& layer) {
  std::vector<std::int64_t> tokens{0};
  QkvChunk chunk;
  layer.rewind();
  while (layer.skip(chunk)) tokens.push_back(tokens.back() + chunk.view.q.num_tokens);
  return tokens;
}

}  // namespace

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

std::vector<std::size_t> ends_of_blocks(LayerStream& layer, const WorkShape& shape) {
  std::int64_t bytes = 0;
  QkvChunk chunk;
  layer.rewind();
  while (layer.skip(chunk)) bytes += chunk.view.q.num_tokens * bytes_per_token(chunk.view);
  BlockCut cut(shape, bytes);
  std::vector<std::size_t> ends;
  std::size_t chunks = 0;
  layer.rewind();
  while (layer.skip(chunk)) {
    ++chunks;
    if (cut.after(chunk) == BlockCut::End::kBlock) ends.push_back(chunks);
  }
  if (chunks > (ends.empty() ? 0 : ends.back())) ends.push_back(chunks);
  return ends;
}

ChunkRange chunks_of_rank(std::span<const std::unique_ptr<LayerStream>> layers, const WorkShape& shape, int rank,
                          int size) {
  if (layers.empty()) return {};
  std::vector<std::size_t> ends = ends_of_blocks(*layers.front(), shape);
  for (const auto& layer : layers.subspan(1)) {
    const std::vector<std::size_t> others = ends_of_blocks(*layer, shape);
    std::erase_if(ends, [&](std::size_t end) { return !std::ranges::binary_search(others, end); });
  }
  const std::vector<std::int64_t> tokens = tokens_before_chunks(*layers.front());
  ChunkRange own{0, 0};
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    // A block is of the process in whose share of the tokens its middle lies.
    const std::int64_t twice_middle = tokens[begin] + tokens[end];
    const auto reader = static_cast<int>(twice_middle * size / (2 * tokens.back()));
    if (reader < rank) own = {end, end};
    if (reader == rank) own.last = end;
    begin = end;
  }
  return own;
}

}  // namespace oscar
