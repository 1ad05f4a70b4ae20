// SPDX-License-Identifier: MIT
#include "dump/source.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <mutex>
#include <system_error>

#include "base/status.hpp"

namespace oscar {

void for_each_layer(QkvSource& source, std::span<const int> ids, int lanes,
                    const std::function<void(std::size_t, std::unique_ptr<LayerStream>)>& task) {
  std::mutex mutex;
  std::size_t next = 0;
  const auto work = [&] {
    while (true) {
      std::unique_lock lock(mutex);
      if (next == ids.size()) return;
      const std::size_t i = next++;
      std::unique_ptr<LayerStream> stream = source.open(ids[i]);
      lock.unlock();
      throw_if_interrupted();
      task(i, std::move(stream));
    }
  };
  std::atomic<bool> stop = false;
  std::exception_ptr failure;  // the first: that others were interrupted follows from it
  const auto stop_others = [&] {
    const StopScope scope(stop);
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex);
      next = ids.size();
      if (failure == nullptr) failure = std::current_exception();
      stop = true;
    }
  };
  std::vector<std::future<void>> others;
  try {
    for (int lane = 1; lane < std::min<int>(lanes, static_cast<int>(ids.size())); ++lane)
      others.push_back(std::async(std::launch::async, stop_others));
  } catch (const std::system_error&) {  // no more threads are to be had: those that run do the work
  }
  stop_others();
  for (std::future<void>& other : others) other.get();
  if (failure != nullptr) std::rethrow_exception(failure);
}

std::vector<std::string> blocks_within(std::vector<std::string> whole, std::span<const std::int64_t> lengths) {
  constexpr std::size_t kDigits = CalibrationData::kBlockDigits;
  if (lengths.size() > whole.size()) return {};
  whole.resize(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::size_t full = static_cast<std::size_t>(lengths[i]) / CalibrationData::kBlockTokens;
    if (whole[i].size() > kDigits) whole[i].resize(std::min(whole[i].size(), full * kDigits));
  }
  return whole;
}

std::vector<std::int64_t> sequence_lengths(LayerStream& stream) {
  std::vector<std::int64_t> lengths;
  QkvChunk chunk;
  stream.rewind();
  while (stream.skip(chunk)) {
    for (const SequenceRange& range : chunk.sequences) lengths.push_back(range.size());
  }
  return lengths;
}

bool RowsBeforeRope::next(QkvChunk& chunk) {
  if (!layer_.next(chunk)) return false;
  struct Owner {
    std::shared_ptr<const void> source;
    std::vector<float> q, k;
  };
  const auto owner = std::make_shared<Owner>(Owner{chunk.owner, {}, {}});
  const auto turned_back = [&](const HeadsView& x, std::vector<float>& rows) {
    const auto width = static_cast<std::size_t>(x.num_heads * x.head_dim);
    rows = x.floats();
    for (std::size_t s = 0; s < chunk.sequences.size(); ++s) {
      const SequenceRange& range = chunk.sequences[s];
      const auto own = std::span(rows).subspan(static_cast<std::size_t>(range.begin) * width,
                                               static_cast<std::size_t>(range.size()) * width);
      turn(rotary_, Turn::kBack, own, x.num_heads, chunk.first_positions.empty() ? 0 : chunk.first_positions[s]);
    }
    return heads_view(rows, x.num_tokens, x.num_heads, x.head_dim);
  };
  if (with_queries_) chunk.view.base_q = turned_back(chunk.view.q, owner->q);
  chunk.view.base_k = turned_back(chunk.view.k, owner->k);
  chunk.owner = owner;
  return true;
}

}  // namespace oscar
