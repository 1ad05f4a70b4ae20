// SPDX-License-Identifier: MIT
#include "dump/source.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <vector>

#include "base/errors.hpp"
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
  for (int lane = 1; lane < std::min<int>(lanes, static_cast<int>(ids.size())); ++lane)
    others.push_back(std::async(std::launch::async, stop_others));
  stop_others();
  for (std::future<void>& other : others) other.get();
  if (failure != nullptr) std::rethrow_exception(failure);
}

namespace {

constexpr float kSmallest = 1e-18F, kLargest = 1e18F;  // whose squares are far inside float32

/// The largest magnitude of each head as bits, which order as magnitudes do.
template <class Bits>
std::vector<Bits> largest_bits(const HeadsView& rows) {
  constexpr auto kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1U);  // all but the sign
  std::vector<Bits> largest(static_cast<std::size_t>(rows.num_heads));
  const std::byte* value = rows.data;
  for (std::int64_t token = 0; token < rows.num_tokens; ++token) {
    for (Bits& head : largest) {
      Bits most = head;
      for (int i = 0; i < rows.head_dim; ++i, value += sizeof(Bits)) {
        Bits bits;
        std::memcpy(&bits, value, sizeof bits);
        most = std::max(most, static_cast<Bits>(bits & kMagnitude));
      }
      head = most;
    }
  }
  return largest;
}

void check_magnitudes(const HeadsView& rows, const char* what, int layer_id, const std::string& where) {
  const auto check = [&](std::size_t head, float largest) {
    const bool small = *what != 'q' && largest < kSmallest, large = std::isfinite(largest) && largest > kLargest;
    if (!small && !large) return;
    throw DataError("layer " + std::to_string(layer_id) + ", " + what + " of head " + std::to_string(head) +
                        (large          ? ": a value is beyond 1e18"
                         : largest == 0 ? ": all rows are zero"
                                        : ": all rows are below 1e-18"),
                    where, "look at how it was made; leave the layer out with --layers, or use a sound model or dump");
  };
  if (rows.num_tokens == 0) return;
  if (rows.dtype == DType::kF32) {
    const auto bits = largest_bits<std::uint32_t>(rows);
    for (std::size_t head = 0; head < bits.size(); ++head) check(head, std::bit_cast<float>(bits[head]));
  } else {
    const auto bits = largest_bits<std::uint16_t>(rows);
    const auto number = rows.dtype == DType::kBF16 ? float_from_bf16 : float_from_f16;
    for (std::size_t head = 0; head < bits.size(); ++head) check(head, number(bits[head]));
  }
}

class CheckedStream : public LayerStream {
 public:
  CheckedStream(std::unique_ptr<LayerStream> rows, int layer_id) : rows_(std::move(rows)), layer_id_(layer_id) {}
  bool next(QkvChunk& out) override {
    if (!rows_->next(out)) return false;
    check_magnitudes(out.view.q, "q", layer_id_, out.where);
    check_magnitudes(out.view.k, "k", layer_id_, out.where);
    check_magnitudes(out.view.v, "v", layer_id_, out.where);
    return true;
  }
  bool skip(QkvChunk& out) override { return rows_->skip(out); }
  void rewind() override { rows_->rewind(); }

 private:
  std::unique_ptr<LayerStream> rows_;
  int layer_id_;
};

}  // namespace

std::unique_ptr<LayerStream> checked(std::unique_ptr<LayerStream> rows, int layer_id) {
  return std::make_unique<CheckedStream>(std::move(rows), layer_id);
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

}  // namespace oscar
