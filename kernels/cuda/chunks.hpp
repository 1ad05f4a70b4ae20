// SPDX-License-Identifier: MIT
// Rows that pass through the GPU in chunks, as they are stored: while it works on one, the next is on its way.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/context.hpp"
#include "kernels/cuda/ingest.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

/// Views of the same tokens.
template <std::size_t n>
using Views = std::array<HeadsView, n>;

/// Room on the GPU for up to `capacity` tokens of views like `shape`.
template <std::size_t n>
class Chunk {
 public:
  Chunk(const Context& context, const Views<n>& shape, std::int64_t capacity) : context_(context) {
    for (std::size_t i = 0; i < n; ++i) {
      buffers_[i] = DeviceBuffer<std::byte>(context, static_cast<std::size_t>(capacity * shape[i].bytes_per_token()));
    }
  }

  /// Sends the tokens on their way, in place of those before.
  void fetch(const Views<n>& source) {
    for (std::size_t i = 0; i < n; ++i) {
      transfers_[i].emplace(context_, source[i], buffers_[i].data());
      on_gpu_[i] = {buffers_[i].data(), source[i].dtype, source[i].num_tokens, source[i].num_heads, source[i].head_dim};
    }
  }
  /// The views of those tokens in GPU memory.
  [[nodiscard]] const Views<n>& arrived() {
    for (std::optional<Transfer>& transfer : transfers_) transfer->wait();
    return on_gpu_;
  }

 private:
  const Context& context_;
  Views<n> on_gpu_;
  std::array<DeviceBuffer<std::byte>, n> buffers_;
  std::array<std::optional<Transfer>, n> transfers_;  // last, since what they write to must outlive them
};

/// task(i, pieces[i] in GPU memory), in order.
template <std::size_t n, class Task>
void for_each_chunk(const Context& context, std::span<const Views<n>> pieces, const Task& task) {
  if (pieces.empty()) return;
  std::int64_t capacity = 0;
  for (const Views<n>& piece : pieces) capacity = std::max(capacity, piece[0].num_tokens);
  Chunk<n> chunks[] = {{context, pieces[0], capacity}, {context, pieces[0], pieces.size() > 1 ? capacity : 0}};
  chunks[0].fetch(pieces[0]);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i + 1 < pieces.size()) chunks[(i + 1) % 2].fetch(pieces[i + 1]);
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

/// The tokens of each part in pieces of `step`.
template <std::size_t n>
[[nodiscard]] std::vector<Views<n>> pieces_of(std::span<const Views<n>> parts, std::int64_t step) {
  std::vector<Views<n>> pieces;
  for (const Views<n>& part : parts) {
    for (const SequenceRange& range : ranges_of(part[0].num_tokens, step)) {
      Views<n>& piece = pieces.emplace_back(part);
      for (HeadsView& view : piece) view = view.tokens(range.begin, range.end);
    }
  }
  return pieces;
}

/// Returns the number of tokens of the longest part.
template <std::size_t n>
[[nodiscard]] std::int64_t most_tokens(std::span<const Views<n>> parts) {
  std::int64_t most = 0;
  for (const Views<n>& part : parts) most = std::max(most, part[0].num_tokens);
  return most;
}

}  // namespace oscar::cuda
