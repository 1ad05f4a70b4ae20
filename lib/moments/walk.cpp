// SPDX-License-Identifier: MIT
#include "moments/walk.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "base/errors.hpp"

namespace oscar {
namespace {

/// Of q, k and v together.
std::int64_t bytes_per_token(const QkvView& view) {
  return view.q.bytes_per_token() + view.k.bytes_per_token() + view.v.bytes_per_token();
}

bool all_finite(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

/// Finds the value that spoilt a sum.
void throw_if_not_finite(HeadsView x, const char* what, const QkvChunk& chunk) {
  std::vector<float> row(static_cast<std::size_t>(x.head_dim));
  for (std::int64_t t = 0; t < x.num_tokens; ++t) {
    for (int h = 0; h < x.num_heads; ++h) {
      x.row(t, h, row);
      if (std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); })) continue;
      throw DataError(std::string(what) + " has NaN or Inf",
                      chunk.where + ", token " + std::to_string(t) + ", head " + std::to_string(h),
                      "dump this layer again, or leave the sequence out");
    }
  }
}

/// The rows of one part on their way to its sums: whole calls, and blocks of calls.
class PartOfWalk {
 public:
  /// bytes: of the part's rows.
  PartOfWalk(const WalkPart& part, const WorkShape& shape, std::int64_t bytes) : part_(part), cut_(shape, bytes) {}

  /// first_sequence: the number of the chunk's first sequence in the layer.
  void push(const QkvChunk& chunk, std::size_t first_sequence) {
    if (!part_.takes) return push(chunk);
    for (std::size_t i = 0; i < chunk.sequences.size(); ++i) {
      if (!part_.takes(first_sequence + i)) continue;
      const SequenceRange range = chunk.sequences[i];
      push({chunk.view.tokens(range), chunk.owner, {{0, range.size()}}, chunk.where});
    }
  }

  void finish() { call(true); }

 private:
  void push(QkvChunk chunk) {
    const BlockCut::End end = cut_.after(chunk);
    waiting_.push_back(std::move(chunk));
    if (end != BlockCut::End::kNothing) call(end == BlockCut::End::kBlock);
  }

  void call(bool ends_block) {
    throw_if_interrupted();
    for (RunningSum* sum : part_.sums) {
      if (!waiting_.empty()) sum->add(waiting_);
      if (ends_block) sum->end_block();
    }
    waiting_.clear();
  }

  const WalkPart& part_;
  BlockCut cut_;
  Chunks waiting_;  // for the backend's next call
};

/// Returns the size of the rows that the part will be given.
std::int64_t bytes_of(const WalkPart& part, LayerStream& layer) {
  std::int64_t bytes = 0;
  std::size_t sequence = 0;
  QkvChunk chunk;
  layer.rewind();
  while (layer.skip(chunk)) {
    for (const SequenceRange& range : chunk.sequences) {
      if (!part.takes || part.takes(sequence)) bytes += range.size() * bytes_per_token(chunk.view);
      ++sequence;
    }
  }
  return bytes;
}

}  // namespace

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

void walk(LayerStream& layer, std::span<const WalkPart> parts, const WorkShape& shape) {
  std::vector<PartOfWalk> walking;
  for (const WalkPart& part : parts) walking.emplace_back(part, shape, bytes_of(part, layer));
  layer.rewind();
  std::size_t sequence = 0;
  for (QkvChunk chunk; layer.next(chunk); chunk = {}) {
    for (PartOfWalk& part : walking) part.push(chunk, sequence);
    sequence += chunk.sequences.size();
  }
  for (PartOfWalk& part : walking) part.finish();
}

bool is_finite(const MomentSums& sums) { return all_finite(sums.sums.data) && all_finite(sums.total); }
bool is_finite(const FisherSums& sums) { return all_finite(sums.query.data) && all_finite(sums.weight); }
bool is_finite(const KeySums& sums) { return all_finite(sums.sums); }

void throw_not_finite(const Chunks& chunks) {
  for (const QkvChunk& chunk : chunks) {
    throw_if_not_finite(chunk.view.q, "q", chunk);
    throw_if_not_finite(chunk.view.k, "k", chunk);
    throw_if_not_finite(chunk.view.v, "v", chunk);
  }
  throw NumericalError("a second moment overflows", chunks.front().where, "check the scale of the dumped values");
}

void throw_no_tokens() { throw DataError("no tokens", "", "dump at least one sequence, or raise --max-tokens"); }

}  // namespace oscar
