// SPDX-License-Identifier: MIT
// Rows of the coded cache on the GPU, encoded and decoded: codes, scales and values are those of
// kernels/reference/coded_row.hpp, bit for bit. oscar/coded_pack.h is what packs them for servers.
#pragma once

#include "kernels/cuda/context.hpp"
#include "kernels/cuda/row_codec.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

/// Encodes and decodes every row as the coded cache does. The view's heads are those from first_head on; params has two
/// a row, whose scales are those of its wide and of its narrow channels. Throws std::logic_error for formats that
/// require_valid() refuses or that have another dimension, UsageError for rows of more than 1024 values.
void code_rows(const Context& context, const RowsView& rows, const HistoryCodec& codec, Precision precision,
               const CodecOutput& out, int first_head);

}  // namespace oscar::cuda
