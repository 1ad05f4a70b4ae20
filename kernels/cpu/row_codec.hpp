// SPDX-License-Identifier: MIT
// The codec of one (token, head) row, fast: the same bits as kernels/reference/row_codec.hpp, which has the formulas'
// rounding; and the history of a sequence in packed rows. The loops are written for the vectoriser, and an encoder
// keeps its memory from row to row. Non-goals: pages, growing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/reference/coded_page.hpp"
#include "kernels/types.hpp"

namespace oscar::cpu {

/// Returns the value that |x| is clamped to. scratch: as long as the row.
[[nodiscard]] float clip_threshold(std::span<const float> row, double ratio, std::span<float> scratch);

// The history of keys, or of values, of one sequence as a cache keeps it: packed rows in the bytes that servers read
// (kernels/reference/row_codec.hpp defines them). A row is decoded when somebody reads it.

class PackedHistory {
 public:
  /// Packs float32 rows (tokens, heads, dim). Throws std::logic_error if the codec is not one of so many heads,
  /// UsageError if it does not fit the dimension.
  PackedHistory(std::span<const float> rows, int heads, int dim, HistoryCodec codec);

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] int heads() const { return static_cast<int>(heads_.size()); }
  [[nodiscard]] int dim() const { return dim_; }
  /// The packed rows of one head, (tokens, bytes of a row).
  [[nodiscard]] std::span<const std::uint8_t> bytes(int head) const {
    return heads_[static_cast<std::size_t>(head)].bytes;
  }

  /// Decodes the row of one (token, head) into `row` (dim). Precision::kServing rounds it to bfloat16.
  void decode(std::int64_t token, int head, Precision precision, std::span<float> row) const;

 private:
  struct Head {
    std::size_t row_bytes = 0;
    std::vector<std::uint8_t> bytes;  // (tokens, row_bytes)
  };
  void pack(std::size_t begin, std::size_t end, std::span<const float> rows);

  HistoryCodec codec_;
  std::vector<reference::CodedRows> coded_;  // of the heads, where the codec is that of the coded cache
  std::int64_t tokens_;
  int dim_;
  int group_size_;
  std::vector<Head> heads_;
};

}  // namespace oscar::cpu
