// SPDX-License-Identifier: MIT
#include "kernels/cuda/coded_layout.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

#include "kernels/reference/coded_operands.hpp"
#include "kernels/server_arguments.hpp"

namespace oscar::cuda {

using reference::CodedOperand;
using reference::CodedPart;

namespace {

[[noreturn]] void refuse_many() { throw std::invalid_argument("a KV head has too many pieces: use fewer bits"); }

/// What the rows of `operand` are: word t of 4. shift: of its bytes to the right.
CodedKeyWord word_of(const CodedOperand& operand, int shift, int t, const float* steps) {
  CodedKeyWord word{};
  for (int byte = 0; byte < 4; ++byte) {
    const int side = byte % 2, j = 2 * t + byte / 2;
    const CodedPart* const part = operand.part(side);
    word.channel[byte] = -1;
    if (part == nullptr || (operand.single() && j >= 4)) continue;
    const int channel = 8 * part->block + (operand.single() ? 2 * j + side : j);
    word.channel[byte] = static_cast<std::int16_t>(channel);
    word.factor[byte] = std::ldexp(steps[channel], part->code_bit - part->position + shift);
  }
  return word;
}

/// Where the planes of one side begin in shared memory: those of 16-byte pieces, and that of the 8-byte piece if there
/// is one.
struct Planes {
  int first_full, half;
  [[nodiscard]] std::uint32_t offset(const CodedOperand& operand) const {
    return static_cast<std::uint32_t>((operand.single() ? half : first_full + operand.piece) * kPlaneBytes);
  }
};

void fill_keys(const std::vector<CodedPart>& parts, int bytes, const Planes& planes, const float* steps,
               CodedHeadTable& table) {
  const std::array<std::vector<CodedOperand>, 4> runs = reference::key_operands(parts, bytes);
  int pairs = 0;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const int shift = run % 2 == 0 ? 0 : 4;
    int slot = 2 * pairs;
    for (const CodedOperand& operand : runs[run]) {
      if (slot == kMostKeyOperands) refuse_many();
      CodedKeyPair& pair = table.key_pair[slot / 2];
      pair.mask[slot % 2] = 0x00010001U * (operand.mask(0) | operand.mask(1) << 8) >> shift;
      pair.plane[slot % 2] = pair.plane[1] = planes.offset(operand);
      for (int t = 0; t < 4; ++t) {
        const CodedKeyWord word = table.key_word[slot][t] = word_of(operand, shift, t, steps);
        for (int byte = 0; byte < 4; ++byte) {
          if (word.channel[byte] < 0) continue;
          float& top = table.key_top[word.channel[byte]];
          top = std::max(top, word.factor[byte]);
        }
      }
      ++slot;
    }
    table.pairs.key_end[run / 2][run % 2] = pairs = (slot + 1) / 2;
  }
}

void fill_values(const std::vector<CodedPart>& parts, int bytes, const Planes& planes, const float* steps, int blocks,
                 CodedHeadTable& table) {
  std::vector<std::pair<int, CodedValuePart>> of_blocks;  // with their blocks
  int slot = 0;
  for (const CodedOperand& operand : reference::value_operands(parts, bytes)) {
    if (slot == kMostValueOperands) refuse_many();
    table.value_pair[slot / 2].mask[slot % 2] = {0x01010101U * operand.mask(0), 0x01010101U * operand.mask(1)};
    CodedValueKind& kind = table.pairs.value[slot / 2];
    kind.plane = static_cast<std::uint8_t>(planes.offset(operand) / kPlaneBytes);
    if (slot < 2 || kind.plane != table.pairs.value[slot / 2 - 1].plane) kind.flags |= CodedValueKind::kNewPlane;
    if (!operand.wide) kind.flags |= slot % 2 == 0 ? CodedValueKind::kFirstNarrow : CodedValueKind::kSecondNarrow;
    for (int side = 0; side < (operand.single() ? 1 : 2); ++side) {
      const CodedPart* const part = operand.part(side);
      if (part == nullptr) continue;
      of_blocks.push_back({part->block,
                           {.slot = static_cast<std::int16_t>(16 * slot + 8 * side),
                            .narrow = static_cast<std::int8_t>(operand.wide ? 0 : 1),
                            .in_half = static_cast<std::int8_t>(operand.single() ? 1 : 0),
                            .unit = std::ldexp(1.0F, part->code_bit - part->position),
                            .middle = 0.5F * static_cast<float>(operand.mask(side))}});
    }
    ++slot;
  }
  table.pairs.values = (slot + 1) / 2;
  std::ranges::stable_sort(of_blocks, {}, &std::pair<int, CodedValuePart>::first);
  for (std::size_t i = 0; i < of_blocks.size(); ++i) {
    table.value_part[i] = of_blocks[i].second;
    table.block_end[of_blocks[i].first] = static_cast<int>(i) + 1;
  }
  for (int block = 1; block < kMostBlocks; ++block) {  // of blocks without bits: none
    table.block_end[block] = std::max(table.block_end[block], table.block_end[block - 1]);
  }
  std::copy_n(steps, 8 * blocks, table.value_step);
}

void require_valid(const std::uint8_t* bits, const float* steps, int blocks) {
  for (int block = 0; block < blocks; ++block) {
    if (bits[block] > 8) throw std::invalid_argument("a channel must have 0 to 8 bits");
    if (block > 0 && bits[block] > bits[block - 1]) {
      throw std::invalid_argument("the bits of a KV head's blocks must not increase");
    }
    for (int i = 8 * block; bits[block] > 0 && i < 8 * block + 8; ++i) {
      if (!(steps[i] > 0) || !std::isfinite(steps[i])) throw std::invalid_argument("steps must be positive");
    }
  }
}

}  // namespace

std::vector<CodedHeadTable> coded_tables(const oscar_coded_format& format, oscar_coded_layout& layout) {
  if (format.head_dim != 64 && format.head_dim != 128 && format.head_dim != 256) {
    throw std::invalid_argument("head_dim must be 64, 128 or 256");
  }
  if (format.num_kv_heads < 1) throw std::invalid_argument("num_kv_heads must be positive");
  if (format.k_bits == nullptr || format.v_bits == nullptr || format.k_steps == nullptr || format.v_steps == nullptr) {
    throw std::invalid_argument("bits and steps must not be null");
  }
  const int blocks = format.head_dim / 8;
  std::vector<CodedHeadTable> tables(static_cast<std::size_t>(format.num_kv_heads));
  layout = {.head_dim = format.head_dim, .num_kv_heads = format.num_kv_heads};
  for (int head = 0; head < format.num_kv_heads; ++head) {
    CodedHeadTable& table = tables[static_cast<std::size_t>(head)];
    const std::uint8_t *const k_bits = format.k_bits + head * blocks, *const v_bits = format.v_bits + head * blocks;
    const float *const k_steps = format.k_steps + head * format.head_dim, *const v_steps =
                                                                              format.v_steps + head * format.head_dim;
    require_valid(k_bits, k_steps, blocks);
    require_valid(v_bits, v_steps, blocks);
    const std::span keys(k_bits, static_cast<std::size_t>(blocks)), values(v_bits, static_cast<std::size_t>(blocks));
    const int k_bytes = reference::bytes_of_string(keys), v_bytes = reference::bytes_of_string(values);
    table.first_byte = layout.token_bytes;
    table.full_planes = k_bytes / 2 + v_bytes / 2;
    table.half_planes = k_bytes % 2 + v_bytes % 2;
    table.key_full_planes = k_bytes / 2, table.key_half_planes = k_bytes % 2;
    const std::vector<CodedPart> k_parts = reference::parts_of(keys), v_parts = reference::parts_of(values);
    for (auto& words : table.key_word) {  // of empty slots
      for (CodedKeyWord& word : words) std::fill_n(word.channel, 4, std::int16_t{-1});
    }
    fill_keys(k_parts, k_bytes, {0, table.full_planes}, k_steps, table);
    fill_values(v_parts, v_bytes, {k_bytes / 2, table.full_planes + k_bytes % 2}, v_steps, blocks, table);
    layout.token_bytes += reference::head_bytes(k_bytes, v_bytes);
    layout.key_operands = std::max(layout.key_operands, 2 * table.pairs.key_end[1][1]);
    layout.value_operands = std::max(layout.value_operands, 2 * table.pairs.values);
    layout.planes = std::max(layout.planes, table.full_planes + table.half_planes);
  }
  layout.table_bytes = static_cast<std::int64_t>(tables.size() * sizeof(CodedHeadTable));
  return tables;
}

}  // namespace oscar::cuda

extern "C" __attribute__((visibility("default"))) int oscar_coded_layout_of(const oscar_coded_format* format,
                                                                            oscar_coded_layout* layout, void* table) {
  using namespace oscar::cuda;
  if (format == nullptr || layout == nullptr) return refuse("format and layout must not be null");
  try {
    const std::vector<CodedHeadTable> tables = coded_tables(*format, *layout);
    if (table != nullptr) std::memcpy(table, tables.data(), static_cast<std::size_t>(layout->table_bytes));
    return 0;
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
}
