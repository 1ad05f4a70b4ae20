// SPDX-License-Identifier: MIT
#include "moments/blocks.hpp"

#include <algorithm>

namespace oscar {
namespace {

std::int64_t bytes_of(const QkvView& view) {
  return view.q.num_tokens * (view.q.bytes_per_token() + view.k.bytes_per_token() + view.v.bytes_per_token());
}

class Blocks : public LayerStream {
 public:
  Blocks(LayerStream& layer, BlockRange range, const WorkShape& shape)
      : layer_(layer), range_(range), shape_(shape), cut_(shape) {
    layer_.rewind();
  }

  bool next(QkvChunk& chunk) override {
    while (block_ < range_.last) {
      const bool wanted = block_ >= range_.first;
      if (wanted ? !layer_.next(chunk) : !layer_.skip(chunk)) return false;
      if (cut_.after(chunk) == BlockCut::End::kBlock) ++block_;
      if (wanted) return true;
    }
    return false;
  }

  void rewind() override {
    layer_.rewind();
    cut_ = BlockCut(shape_);
    block_ = 0;
  }

 private:
  LayerStream& layer_;
  BlockRange range_;
  WorkShape shape_;
  BlockCut cut_;
  std::int64_t block_ = 0;  // of the next chunk
};

/// Of each chunk, and of the end.
std::vector<std::int64_t> tokens_before_chunks(LayerStream& layer) {
  std::vector<std::int64_t> tokens{0};
  QkvChunk chunk;
  layer.rewind();
  while (layer.skip(chunk)) tokens.push_back(tokens.back() + chunk.view.q.num_tokens);
  return tokens;
}

}  // namespace

BlockCut::End BlockCut::after(const QkvChunk& chunk) {
  bytes_ += std::max<std::int64_t>(bytes_of(chunk.view), 1);
  tokens_ += chunk.view.q.num_tokens;
  if (bytes_ < call_bytes_) return End::kNothing;
  bytes_ = 0;
  if (tokens_ < kBlockTokens) return End::kCall;
  tokens_ = 0;
  return End::kBlock;
}

Call next_call(LayerStream& layer, BlockCut& cut) {
  Call call;
  QkvChunk chunk;
  while (layer.next(chunk)) {
    const BlockCut::End end = cut.after(chunk);
    call.chunks.push_back(std::move(chunk));
    chunk = {};
    call.ends_block = end == BlockCut::End::kBlock;
    if (end != BlockCut::End::kNothing) break;
  }
  return call;
}

std::unique_ptr<LayerStream> blocks_of(LayerStream& layer, BlockRange range, const WorkShape& shape) {
  return std::make_unique<Blocks>(layer, range, shape);
}

std::vector<std::size_t> ends_of_blocks(LayerStream& layer, const WorkShape& shape) {
  BlockCut cut(shape);
  std::vector<std::size_t> ends;
  std::size_t chunks = 0;
  QkvChunk chunk;
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
