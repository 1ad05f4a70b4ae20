// SPDX-License-Identifier: MIT
// The row codecs on rows that are on the GPU already; the equations stand in kernels/README.md.
#pragma once

#include <span>

#include "kernels/cuda/context.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

/// Where results go; null: nowhere. With n codecs every array is n times as long, codec by codec.
struct CodecOutput {
  float* decoded = nullptr;       // (rows, dim)
  double* decoded_f64 = nullptr;  // (rows, dim), the same values
};

/// Codecs that one launch takes.
inline constexpr std::size_t kMaxCodecs = 64;

/// Encodes and decodes every row with every codec, in one launch. Rows must be finite; where heads have clip ratios of
/// their own, those of the view are the KV heads from first_head on. Throws UsageError as checked_group_size() does,
/// and for rows of more than 1024 values.
void quantize_rows(const Context& context, const RowsView& rows, std::span<const HistoryCodec> codecs,
                   Precision precision, const CodecOutput& out, int first_head = 0);

/// Encodes and decodes every row as the coded cache does, to the bit of kernels/reference/coded_row.hpp. The view's
/// heads are those from first_head on. Throws std::logic_error for formats that require_valid() refuses or that have
/// another dimension, UsageError for rows of more than 1024 values.
void code_rows(const Context& context, const RowsView& rows, const HistoryCodec& codec, Precision precision,
               const CodecOutput& out, int first_head);

}  // namespace oscar::cuda
