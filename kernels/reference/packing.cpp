// SPDX-License-Identifier: MIT
#include "kernels/reference/packing.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/check.hpp"
#include "kernels/arguments.hpp"
#include "kernels/reference/coded_page.hpp"
#include "kernels/reference/row_codec.hpp"

namespace oscar::reference {

namespace {

bool is_int2(int levels, std::size_t count) { return levels == 4 && count % 4 == 0; }

}  // namespace

std::size_t code_bytes(int levels, std::size_t count) { return is_int2(levels, count) ? count / 4 : count; }

void pack_codes(std::span<const std::uint8_t> codes, int levels, std::span<std::uint8_t> bytes) {
  const std::size_t count = bytes.size();
  OSCAR_CHECK(count == code_bytes(levels, codes.size()));
  OSCAR_CHECK(std::ranges::all_of(codes, [&](std::uint8_t code) { return code < levels; }));
  if (!is_int2(levels, codes.size())) return void(std::ranges::copy(codes, bytes.begin()));
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::uint8_t>(codes[i] | codes[i + count] << 2U | codes[i + 2 * count] << 4U |
                                         codes[i + 3 * count] << 6U);
  }
}

void unpack_codes(std::span<const std::uint8_t> bytes, int levels, std::span<std::uint8_t> codes) {
  const std::size_t count = bytes.size();
  OSCAR_CHECK(count == code_bytes(levels, codes.size()));
  if (!is_int2(levels, codes.size())) return void(std::ranges::copy(bytes, codes.begin()));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::uint8_t>(bytes[i % count] >> (i / count * 2) & 3U);
  }
}

void pack_parameters(std::span<const float> pairs, DType dtype, std::span<std::uint8_t> bytes) {
  const std::size_t size = size_of(dtype);
  OSCAR_CHECK(is_activation_dtype(dtype) && bytes.size() == pairs.size() * size);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::uint32_t bits = dtype == DType::kF32   ? std::bit_cast<std::uint32_t>(pairs[i])
                               : dtype == DType::kF16 ? f16_from_float(pairs[i])
                                                      : bf16_from_float(pairs[i]);
    for (std::size_t byte = 0; byte < size; ++byte) {
      bytes[i * size + byte] = static_cast<std::uint8_t>(bits >> (8 * byte));
    }
  }
}

void unpack_parameters(std::span<const std::uint8_t> bytes, DType dtype, std::span<float> pairs) {
  const std::size_t size = size_of(dtype);
  OSCAR_CHECK(is_activation_dtype(dtype) && bytes.size() == pairs.size() * size);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    std::uint32_t bits = 0;
    for (std::size_t byte = 0; byte < size; ++byte) bits |= std::uint32_t{bytes[i * size + byte]} << (8 * byte);
    pairs[i] = dtype == DType::kF32   ? std::bit_cast<float>(bits)
               : dtype == DType::kF16 ? float_from_f16(static_cast<std::uint16_t>(bits))
                                      : float_from_bf16(static_cast<std::uint16_t>(bits));
  }
}

namespace {

CodedRows coded_rows(const HistoryCodec& codec, int kv_head) {
  return CodedRows(codec.coded->at(static_cast<std::size_t>(kv_head)));
}

std::size_t groups_of(const RowCodec& codec, std::size_t dim) {
  return dim / static_cast<std::size_t>(checked_group_size(codec, static_cast<int>(dim)));
}

}  // namespace

std::size_t packed_row_bytes(const HistoryCodec& codec, int kv_head, std::size_t dim) {
  if (codec.coded != nullptr) return coded_rows(codec, kv_head).bytes();
  return code_bytes(codec.levels, dim) + 2 * groups_of(codec, dim) * size_of(codec.scale_dtype);
}

void encode_packed_row(const HistoryCodec& codec, int kv_head, std::span<const float> row,
                       std::span<std::uint8_t> bytes) {
  OSCAR_CHECK(bytes.size() == packed_row_bytes(codec, kv_head, row.size()));
  if (codec.coded != nullptr) return coded_rows(codec, kv_head).write(row, bytes.data());
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
  if (codec.coded != nullptr) return coded_rows(codec, kv_head).read(bytes.data(), row);
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
