// SPDX-License-Identifier: MIT
// A sequence that stays on the GPU, native and as the cache stores it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/context.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/mixed_sequence.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

// The queries, keys or values of one sequence on the GPU: native as they came, and in transformed coordinates as a
// server stores them. KV heads are the outer index of all that is made from them, so that what belongs to one of them
// is one dense matrix; a query token has g = q heads / KV heads rows in it.

/// A stack of 1 or Hkv matrices (d, d) in fp64, as given and as kServing rounds it, and what is subtracted from rows
/// before they are multiplied.
class Rotation {
 public:
  /// `matrices` may be null: no rotation. mean: (Hkv, d), or empty.
  Rotation(const Context& context, const MatrixStack* matrices, std::span<const double> mean, Precision precision);

  [[nodiscard]] bool exists() const { return count_ > 0; }
  [[nodiscard]] int count() const { return count_; }
  /// kServing only if it was made for that.
  [[nodiscard]] const double* matrix(int kv_head, Precision precision) const;
  /// Returns the mean of a head; null if there is none.
  [[nodiscard]] const double* mean(int kv_head) const;

 private:
  int count_ = 0;
  std::int64_t dim_ = 0;
  DeviceBuffer<double> exact_, rounded_, mean_;
};

/// Some KV heads, and some tokens.
struct Part {
  int first_head = 0, heads = 0;
  std::int64_t first_token = 0, tokens = 0;
};

class HeldRows {
 public:
  /// native: the bytes of x on the GPU.
  HeldRows(const Context& context, const HeadsView& x, DeviceBuffer<std::byte> native, int kv_heads,
           const Rotation& rotation, Precision precision);

  /// The history of these rows is `decoded` (tokens, Hkv, d), float32 on the GPU, whatever codec is named.
  void set_history(const Context& context, const HeadsView& decoded, DeviceBuffer<std::byte> bytes);
  [[nodiscard]] bool has_history() const { return history_ != nullptr; }
  [[nodiscard]] RowsView history(const Part& part) const { return history_->stored(part); }

  [[nodiscard]] int dim() const { return dim_; }
  /// Query heads of a KV head; 1 for keys and values.
  [[nodiscard]] int heads_per_kv_head() const { return g_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] int kv_heads() const { return kv_heads_; }
  [[nodiscard]] Part everything() const { return {0, kv_heads_, 0, tokens_}; }
  /// Values of a part: heads * tokens * g * d.
  [[nodiscard]] std::size_t size(const Part& part) const {
    return static_cast<std::size_t>(part.heads * part.tokens * g_) * static_cast<std::size_t>(dim_);
  }

  /// tokens rows of g * d values for each head.
  [[nodiscard]] RowsView native(const Part& part) const;
  /// tokens * g rows of d values for each head: bfloat16 for kServing, fp32 for kExact.
  [[nodiscard]] RowsView stored(const Part& part) const;
  /// Native rows times the rotation, if there is one, (heads, tokens, g, d): the products as `precision` forms them,
  /// not yet rounded.
  [[nodiscard]] DeviceBuffer<double> rotated(const Context& context, const Part& part, const Rotation& rotation,
                                             Precision precision) const;

 private:
  DType dtype_, stored_dtype_;
  int kv_heads_, g_, dim_;
  std::int64_t tokens_;
  DeviceBuffer<std::byte> native_;  // (tokens, Hkv, g, d) of dtype
  DeviceBuffer<std::byte> stored_;  // (Hkv, tokens, g, d) of stored_dtype
  std::unique_ptr<HeldRows> history_;
};

// A MixedSequence whose rows lie on the GPU. Each call takes a lane, launches everything it needs there, and waits for
// the GPU once, when it fetches the result.

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
