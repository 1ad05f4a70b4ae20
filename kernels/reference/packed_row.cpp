// SPDX-License-Identifier: MIT
#include "kernels/reference/packed_row.hpp"

#include <vector>

#include "base/check.hpp"
#include "kernels/arguments.hpp"
#include "kernels/reference/coded_row.hpp"
#include "kernels/reference/packing.hpp"
#include "kernels/reference/row_codec.hpp"

namespace oscar::reference {
namespace {

const CodedFormat& format_of(const HistoryCodec& codec, int kv_head) {
  return codec.coded->at(static_cast<std::size_t>(kv_head));
}

std::size_t groups_of(const RowCodec& codec, std::size_t dim) {
  return dim / static_cast<std::size_t>(checked_group_size(codec, static_cast<int>(dim)));
}

}  // namespace

std::size_t packed_row_bytes(const HistoryCodec& codec, int kv_head, std::size_t dim) {
  if (codec.coded != nullptr) return coded_row_bytes(format_of(codec, kv_head));
  return code_bytes(codec.levels, dim) + 2 * groups_of(codec, dim) * size_of(codec.scale_dtype);
}

void encode_packed_row(const HistoryCodec& codec, int kv_head, std::span<const float> row,
                       std::span<std::uint8_t> bytes) {
  OSCAR_CHECK(bytes.size() == packed_row_bytes(codec, kv_head, row.size()));
  if (codec.coded != nullptr) return encode_coded_row(format_of(codec, kv_head), row, bytes);
  const QuantizedRows encoded = encode_row(codec.of_head(kv_head), row);
  std::vector<float> pairs;
  for (std::size_t group = 0; group < encoded.scale.size(); ++group) {
    pairs.insert(pairs.end(), {encoded.scale[group], encoded.zero[group]});
  }
  const std::size_t codes = code_bytes(codec.levels, row.size());
  pack_codes(encoded.codes, codec.levels, bytes.first(codes));
  pack_parameters(pairs, codec.scale_dtype, bytes.subspan(codes));
}

void decode_packed_row(const HistoryCodec& codec, int kv_head, std::span<const std::uint8_t> bytes,
                       std::span<float> row) {
  OSCAR_CHECK(bytes.size() == packed_row_bytes(codec, kv_head, row.size()));
  if (codec.coded != nullptr) return decode_coded_row(format_of(codec, kv_head), bytes, row);
  const std::size_t codes = code_bytes(codec.levels, row.size()), groups = groups_of(codec, row.size());
  QuantizedRows encoded{std::vector<std::uint8_t>(row.size()), {}, {}};
  std::vector<float> pairs(2 * groups);
  unpack_codes(bytes.first(codes), codec.levels, encoded.codes);
  unpack_parameters(bytes.subspan(codes), codec.scale_dtype, pairs);
  for (std::size_t group = 0; group < groups; ++group) {
    encoded.scale.push_back(pairs[2 * group]);
    encoded.zero.push_back(pairs[2 * group + 1]);
  }
  decode_row(encoded, row);
}

}  // namespace oscar::reference
