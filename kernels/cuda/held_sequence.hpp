// SPDX-License-Identifier: MIT
// A MixedSequence whose rows lie on the GPU. Each call takes a lane, launches everything it needs there, and waits for
// the GPU once, when it fetches the result.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/held_rows.hpp"
#include "kernels/cuda/lanes.hpp"
#include "kernels/mixed_sequence.hpp"

namespace oscar::cuda {

/// The sequence as its calls need it.
struct HeldData {
  Precision precision;
  std::vector<std::int64_t> host_positions;
  DeviceBuffer<std::int64_t> positions;  // of the queries among the keys
  Rotation query_read, key_write, value_write, value_read;
  bool key_keeps_lengths, value_keeps_lengths;  // orthogonal, or no transform
  HeldRows q, k, v;
  ScoreRule scores;

  HeldData(const Context& context, const SequenceInput& input);

 private:
  struct NativeBytes;
  HeldData(const Context& context, const SequenceInput& input, NativeBytes native);
};

/// The calls of MixedSequence, each in a file of its own.
void attend(const Context& context, const HeldData& held, const HistoryCodecs& codecs, Windows windows,
            std::span<float> out);
[[nodiscard]] std::vector<std::vector<AttentionErrors>> compare(const Context& context, const HeldData& held,
                                                                std::span<const HistoryCodecs> candidates,
                                                                Windows windows);
[[nodiscard]] std::vector<RowErrors> row_errors(const Context& context, const HeldData& held,
                                                const HistoryCodecs& codecs, Windows windows);

[[nodiscard]] std::unique_ptr<MixedSequence> hold(Lanes& lanes, const SequenceInput& input);

}  // namespace oscar::cuda
