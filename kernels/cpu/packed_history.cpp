// SPDX-License-Identifier: MIT
#include "kernels/cpu/packed_history.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/row_codec.hpp"
#include "kernels/reference/coded_row.hpp"
#include "kernels/reference/packed_row.hpp"
#include "kernels/reference/packing.hpp"

namespace oscar::cpu {
namespace {

constexpr std::size_t kRowsPerTask = 1024;

/// What decoding a row needs beside it: as many codes and parameters as one has.
struct Scratch {
  std::vector<std::uint8_t> codes;
  std::vector<float> pairs;  // scale and zero of each group
};

}  // namespace

PackedHistory::PackedHistory(std::span<const float> rows, int heads, int dim, HistoryCodec codec)
    : codec_(std::move(codec)),
      tokens_(static_cast<std::int64_t>(rows.size()) / heads / dim),
      dim_(dim),
      group_size_(codec_.coded == nullptr ? checked_group_size(codec_, dim) : dim),
      heads_(static_cast<std::size_t>(heads)) {
  check_heads(codec_, heads);
  if (codec_.coded != nullptr) std::ranges::for_each(*codec_.coded, reference::require_valid);
  for (std::size_t head = 0; head < heads_.size(); ++head) {
    heads_[head].row_bytes = reference::packed_row_bytes(codec_, static_cast<int>(head), static_cast<std::size_t>(dim));
    heads_[head].bytes.resize(static_cast<std::size_t>(tokens_) * heads_[head].row_bytes);
  }
  const std::size_t num_rows = static_cast<std::size_t>(tokens_) * heads_.size();
  OSCAR_CHECK(rows.size() == num_rows * static_cast<std::size_t>(dim));
  parallel_for((num_rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::size_t task) {
    pack(task * kRowsPerTask, std::min((task + 1) * kRowsPerTask, num_rows), rows);
  });
}

void PackedHistory::pack(std::size_t begin, std::size_t end, std::span<const float> rows) {
  const auto dim = static_cast<std::size_t>(dim_);
  std::vector<RowCodec> codecs;
  for (int head = 0; head < heads(); ++head) codecs.push_back(codec_.of_head(head));
  RowEncoder encoder(dim_, group_size_);
  for (std::size_t row = begin; row < end; ++row) {
    const std::size_t head = row % heads_.size(), token = row / heads_.size();
    const std::span<const float> values = rows.subspan(row * dim, dim);
    const std::span<std::uint8_t> bytes =
        std::span(heads_[head].bytes).subspan(token * heads_[head].row_bytes, heads_[head].row_bytes);
    if (codec_.coded != nullptr) {
      reference::encode_coded_row((*codec_.coded)[head], values, bytes);
      continue;
    }
    encoder.encode(values, codecs[head]);
    const std::size_t codes = reference::code_bytes(codec_.levels, dim);
    reference::pack_codes(encoder.codes(), codec_.levels, bytes.first(codes));
    reference::pack_parameters(encoder.parameters(), codec_.scale_dtype, bytes.subspan(codes));
  }
}

void PackedHistory::decode(std::int64_t token, int head, Precision precision, std::span<float> row) const {
  const Head& own = heads_[static_cast<std::size_t>(head)];
  const auto bytes = std::span(own.bytes).subspan(static_cast<std::size_t>(token) * own.row_bytes, own.row_bytes);
  if (codec_.coded != nullptr) {
    reference::decode_coded_row((*codec_.coded)[static_cast<std::size_t>(head)], bytes, row);
  } else {
    thread_local Scratch scratch;
    const auto group_size = static_cast<std::size_t>(group_size_);
    scratch.codes.resize(row.size()), scratch.pairs.resize(2 * row.size() / group_size);
    const std::size_t codes = reference::code_bytes(codec_.levels, row.size());
    reference::unpack_codes(bytes.first(codes), codec_.levels, scratch.codes);
    reference::unpack_parameters(bytes.subspan(codes), codec_.scale_dtype, scratch.pairs);
    decode_row(scratch.codes, scratch.pairs, row);
  }
  if (precision == Precision::kServing) round_to_bf16(row);
}

}  // namespace oscar::cpu
