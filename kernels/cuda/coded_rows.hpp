// SPDX-License-Identifier: MIT
// Packed rows of the coded cache on the GPU: bytes and values are those of kernels/reference/coded_row.hpp, bit for
// bit.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/context.hpp"
#include "kernels/cuda/row_codec.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

/// One channel of a format.
struct CodedChannel {
  float step, sigma;
  int bits;        // log2 of its levels
  int first_byte;  // of its block in the packed row
};

/// One KV head's format.
struct CodedHead {
  int wide, stored;           // channels [0, wide) are of the wide class, [wide, stored) of the narrow one
  int row_bytes;              // of a packed row
  std::int64_t bytes_before;  // of one packed row of each head before this one
};

/// Formats as kernels read them. Null heads: there are none.
struct CodedView {
  const CodedHead* heads = nullptr;        // (heads)
  const CodedChannel* channels = nullptr;  // (heads, dim)
  const float* scales = nullptr;           // (256): what a scale byte stands for
  const float* least_scales = nullptr;     // (256): the least scale that is rounded to a byte
  int dim = 0;

  /// Where row `row` of a head begins. All heads have rows_per_head rows, packed head by head.
  [[nodiscard]] __host__ __device__ std::int64_t offset(std::int64_t head, std::int64_t row,
                                                        std::int64_t rows_per_head) const {
    return heads[head].bytes_before * rows_per_head + row * heads[head].row_bytes;
  }
};

/// Formats of neighbouring KV heads in GPU memory.
class CodedFormats {
 public:
  CodedFormats() = default;
  /// Throws std::logic_error as require_valid() does, and unless all have `dim` channels.
  CodedFormats(const Context& context, std::span<const CodedFormat> formats, int dim);

  [[nodiscard]] const CodedView& view() const { return view_; }
  /// Bytes of one packed row of every head.
  [[nodiscard]] std::int64_t bytes_per_token() const { return bytes_per_token_; }

 private:
  CodedView view_;
  std::int64_t bytes_per_token_ = 0;
  DeviceBuffer<CodedHead> heads_;
  DeviceBuffer<CodedChannel> channels_;
  DeviceBuffer<float> scales_;
};

/// The formats of KV heads [first_head, first_head + heads).
[[nodiscard]] std::span<const CodedFormat> formats_of(const HistoryCodec& codec, int first_head, std::int64_t heads);

/// Packs every row of the view, whose heads are those of the formats, into rows_per_head * bytes_per_token() bytes.
/// Throws UsageError for rows of more than 1024 values.
void encode_coded_rows(const Context& context, const RowsView& rows, const CodedFormats& formats, std::uint8_t* bytes);

/// Packs rows as the coded cache stores them, into out.codes unless null, and decodes the bytes into dense arrays. The
/// view's heads are those from first_head on.
void pass_through_coded_rows(const Context& context, const RowsView& rows, const HistoryCodec& codec,
                             Precision precision, const CodecOutput& out, int first_head);

}  // namespace oscar::cuda
