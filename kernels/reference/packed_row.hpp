// SPDX-License-Identifier: MIT
// A packed row of the history: the row of one token and KV head as the bytes that a cache keeps. A history's codec says
// which kind it is.
//   row codec     the codes (packing.hpp), then scale and zero of each group
//   coded cache   the blocks of the KV head's format, then two scale bytes (coded_row.hpp)
// Every row of a KV head and side has the same size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/types.hpp"

namespace oscar::reference {

/// Returns the bytes of a packed row of d channels.
[[nodiscard]] std::size_t packed_row_bytes(const HistoryCodec& codec, int kv_head, std::size_t dim);

/// Encodes and packs row (d) into bytes (packed_row_bytes).
void encode_packed_row(const HistoryCodec& codec, int kv_head, std::span<const float> row,
                       std::span<std::uint8_t> bytes);

/// Unpacks and decodes bytes (packed_row_bytes) into row (d).
void decode_packed_row(const HistoryCodec& codec, int kv_head, std::span<const std::uint8_t> bytes,
                       std::span<float> row);

}  // namespace oscar::reference
