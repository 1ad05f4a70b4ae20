// SPDX-License-Identifier: MIT
// Held sequences of Qwen3-8B size (32 query heads, 8 KV heads of 128): the clip sweep of a layer as `fit` does it, and
// INT2 attention of a whole sequence and of one query as `verify` does it.
#include <algorithm>
#include <array>
#include <thread>

#include "bench/cuda_bench.hpp"

namespace oscar {
namespace {

constexpr int kHeads = 32, kSequenceKvHeads = 8, kSequenceDim = 128;
constexpr Windows kWindows{64, 256};

Tensor random_rows(std::int64_t tokens, int heads, std::uint32_t seed) {
  std::vector<float> values(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(heads * kSequenceDim));
  for (float& value : values) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(seed >> 8) / (1 << 23) - 1.0F;
  }
  return convert(Tensor::from({tokens, heads, kSequenceDim}, std::span<const float>(values)), DType::kBF16);
}

MatrixStack rotations() {
  MatrixStack matrices = covariances(kSequenceKvHeads, kSequenceDim);
  for (double& value : matrices.data) value /= kSequenceDim;
  return matrices;
}

/// `queries` of the last positions, evenly spread over those that see history; all of them if there are as many as
/// keys.
struct Sequence {
  Tensor q, k, v;
  std::vector<std::int64_t> positions;
  Transform rotation{rotations(), {}, {}};

  Sequence(std::int64_t keys, std::int64_t queries, std::uint32_t seed)
      : q(random_rows(queries, kHeads, seed)),
        k(random_rows(keys, kSequenceKvHeads, seed + 1)),
        v(random_rows(keys, kSequenceKvHeads, seed + 2)) {
    const std::int64_t step = queries == keys ? 1 : (keys - kWindows.sink - kWindows.recent) / queries;
    for (std::int64_t i = queries; i > 0; --i) positions.push_back(keys - 1 - (i - 1) * step);
  }
  [[nodiscard]] std::unique_ptr<MixedSequence> hold(Backend& backend) const {
    return backend.hold(
        {{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")}, positions, &rotation, &rotation});
  }
  [[nodiscard]] std::size_t size() const { return q.data.size() + k.data.size() + v.data.size(); }
};

std::vector<HistoryCodecs> clip_candidates(bool keys) {
  std::vector<HistoryCodecs> all;
  for (const double ratio : {1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 0.88, 0.85, 0.8, 0.75}) {
    const RowCodec codec{.clip_ratio = ratio};
    all.push_back(keys ? HistoryCodecs{codec, {}} : HistoryCodecs{RowCodec{.clip_ratio = 0.96}, codec});
  }
  return all;
}

/// Two sequences of 1536 keys with 16 queries each: ten codecs for the keys, then ten for the values.
struct ClipSweep {
  std::array<Sequence, 2> sequences{Sequence(1536, 16, 1), Sequence(1536, 16, 2)};

  void run(Backend& backend) const {
    std::vector<std::unique_ptr<MixedSequence>> held;
    for (const Sequence& sequence : sequences) held.push_back(sequence.hold(backend));
    for (const bool keys : {true, false}) {
      for (const auto& sequence : held) (void)sequence->compare(clip_candidates(keys), kWindows);
    }
  }
};

Json measure_clip(Backend& backend) {
  const ClipSweep sweep;
  const auto& first = sweep.sequences.front();
  const auto held = first.hold(backend);
  const auto three_layers = [&] {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { sweep.run(backend); });
  };
  return {{"layer", measure(2 * first.size(), 0, [&] { sweep.run(backend); })},
          {"three_layers_at_once", measure(6 * first.size(), 0, three_layers)},
          {"hold_one_sequence", measure(first.size(), 0, [&] { (void)first.hold(backend); })},
          {"ten_key_codecs", measure(0, 0, [&] { (void)held->compare(clip_candidates(true), kWindows); })},
          {"ten_value_codecs", measure(0, 0, [&] { (void)held->compare(clip_candidates(false), kWindows); })}};
}

Json measure_attention(Backend& backend, std::int64_t keys, std::int64_t queries) {
  const Sequence sequence(keys, queries, 5);
  const auto held = sequence.hold(backend);
  const HistoryCodecs codecs{RowCodec{.clip_ratio = 0.96}, RowCodec{.clip_ratio = 0.92}};
  std::vector<float> out(static_cast<std::size_t>(queries) * kHeads * kSequenceDim);
  double pairs = 0;
  for (const std::int64_t position : sequence.positions) pairs += static_cast<double>(position + 1) * kHeads;
  return {{"hold", measure(
                       sequence.size(), 0, [&] { (void)sequence.hold(backend); }, 5)},
          {"attend", measure(
                         0, 4 * kSequenceDim * pairs, [&] { held->attend(codecs, kWindows, out); }, 5)},
          {"row_errors", measure(
                             0, 0, [&] { (void)held->row_errors(codecs, kWindows); }, 5)}};
}

}  // namespace

Json measure_sequences(Backend& backend) {
  const Sequence sampled(4096, 256, 7);
  const auto held = sampled.hold(backend);
  const RowCodec codec{.clip_ratio = 0.96};
  const std::vector<HistoryCodecs> candidates{{codec, codec}, {codec, {}}, {{}, codec}};
  return {{"clip_sweep", measure_clip(backend)},
          {"prefill_4096", measure_attention(backend, 4096, 4096)},
          {"decode_4096", measure_attention(backend, 4096, 1)},
          {"compare_4096_256_queries", measure(
                                           0, 0, [&] { (void)held->compare(candidates, kWindows); }, 5)}};
}

}  // namespace oscar
