// SPDX-License-Identifier: MIT
// Rows that pass through the GPU in chunks, as they are stored: while it works on one, the next is on its way.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/device_buffer.hpp"
#include "kernels/cuda/ingest.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

/// Room on the GPU for some tokens of `n` views of the same tokens.
template <std::size_t n>
class Chunk {
 public:
  Chunk(const Context& context, const std::array<HeadsView, n>& views, std::int64_t capacity)
      : context_(context), views_(views) {
    for (std::size_t i = 0; i < n; ++i) {
      buffers_[i] = DeviceBuffer<std::byte>(context, static_cast<std::size_t>(capacity * views[i].bytes_per_token()));
    }
  }

  /// Sends the tokens on their way, in place of those before.
  void fetch(SequenceRange tokens) {
    for (std::size_t i = 0; i < n; ++i) {
      const HeadsView source = views_[i].tokens(tokens.begin, tokens.end);
      transfers_[i].emplace(context_, source, buffers_[i].data());
      on_gpu_[i] = {buffers_[i].data(), source.dtype, source.num_tokens, source.num_heads, source.head_dim};
    }
  }
  /// The views of those tokens in GPU memory.
  [[nodiscard]] const std::array<HeadsView, n>& arrived() {
    for (std::optional<Transfer>& transfer : transfers_) transfer->wait();
    return on_gpu_;
  }

 private:
  const Context& context_;
  std::array<HeadsView, n> views_, on_gpu_;
  std::array<DeviceBuffer<std::byte>, n> buffers_;
  std::array<std::optional<Transfer>, n> transfers_;  // last, since what they write to must outlive them
};

/// task(i, tokens ranges[i] of the views, in GPU memory), in order.
template <std::size_t n, class Task>
void for_each_chunk(const Context& context, const std::array<HeadsView, n>& views,
                    std::span<const SequenceRange> ranges, const Task& task) {
  if (ranges.empty()) return;
  std::int64_t capacity = 0;
  for (const SequenceRange& range : ranges) capacity = std::max(capacity, range.size());
  Chunk<n> chunks[] = {{context, views, capacity}, {context, views, ranges.size() > 1 ? capacity : 0}};
  chunks[0].fetch(ranges[0]);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (i + 1 < ranges.size()) chunks[(i + 1) % 2].fetch(ranges[i + 1]);
    task(i, chunks[i % 2].arrived());
  }
}

/// Tokens [0, num_tokens) in ranges of `step`.
[[nodiscard]] inline std::vector<SequenceRange> ranges_of(std::int64_t num_tokens, std::int64_t step) {
  std::vector<SequenceRange> ranges;
  for (std::int64_t begin = 0; begin < num_tokens; begin += step) {
    ranges.push_back({begin, std::min(begin + step, num_tokens)});
  }
  return ranges;
}

}  // namespace oscar::cuda
