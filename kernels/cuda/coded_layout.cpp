// SPDX-License-Identifier: MIT
#include "kernels/cuda/coded_layout.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/cuda/int2_arguments.hpp"

namespace oscar::cuda {
namespace {

/// Bits of the codes of a block that lie in one byte of each string.
struct Part {
  int block, byte, position, width;  // byte of a string, lowest bit in it
  int code_bit;                      // the lowest bit of the code that is here
  bool wide;
};

std::vector<Part> parts_of(const std::uint8_t* bits, int blocks) {
  std::vector<Part> parts;
  int at = 0;
  for (int block = 0; block < blocks; ++block) {
    for (int done = 0; done < bits[block];) {
      const int width = std::min(bits[block] - done, 8 - at % 8);
      parts.push_back({block, at / 8, at % 8, width, done, bits[block] >= kWideBits});
      done += width, at += width;
    }
  }
  return parts;
}

int bytes_of_string(const std::uint8_t* bits, int blocks) {
  int sum = 0;
  for (int block = 0; block < blocks; ++block) sum += bits[block];
  return (sum + 7) / 8;
}

/// The bits of a part in a byte that was shifted right by `shift`.
std::uint32_t mask_of(const Part* part, int shift) {
  return part == nullptr ? 0 : ((1U << part->width) - 1) << (part->position - shift);
}

/// A part of the low and one of the high bytes of a 16-byte piece of a row, of which one may be missing; or `single`,
/// the part `low` of a piece of 8 bytes.
struct Operand {
  const Part *low = nullptr, *high = nullptr;
  int piece = 0, shift = 0;
  bool wide = false, single = false;

  [[nodiscard]] std::uint32_t low_mask() const { return mask_of(low, shift); }
  [[nodiscard]] std::uint32_t high_mask() const { return single ? low_mask() : mask_of(high, shift); }
};

/// The operands of one side, wide ones first, in the order of their bytes. `halves`: bits 4 to 7 of a byte make
/// operands of their own, which are shifted to bits 0 to 3, so that no unit is more than 8 times another.
std::vector<Operand> operands_of(const std::vector<Part>& parts, bool halves) {
  std::vector<Operand> operands;
  const int bytes = parts.empty() ? 0 : parts.back().byte + 1, pieces = (bytes + 1) / 2;
  for (const bool wide : {true, false}) {
    for (int piece = 0; piece < pieces; ++piece) {
      for (const int half : {0, 1}) {
        std::vector<const Part*> found[2];
        for (const Part& part : parts) {
          const int its_half = halves && part.position >= 4 ? 1 : 0;
          if (part.wide == wide && part.byte / 2 == piece && its_half == half) found[part.byte % 2].push_back(&part);
        }
        for (std::size_t i = 0; i < std::max(found[0].size(), found[1].size()); ++i) {
          operands.push_back({i < found[0].size() ? found[0][i] : nullptr, i < found[1].size() ? found[1][i] : nullptr,
                              piece, 4 * half, wide, 2 * piece + 1 == bytes});
        }
      }
    }
  }
  return operands;
}

CodedOperandChannels channels_of(const Operand& operand, const float* steps) {
  CodedOperandChannels channels{};
  for (const int side : {0, 1}) {
    const Part* const part = side == 0 || operand.single ? operand.low : operand.high;
    channels.middle[side] = 0.5F * static_cast<float>(mask_of(part, operand.shift));
    for (int j = 0; j < 8; ++j) {
      channels.channel[side][j] = -1;
      if (part == nullptr || (operand.single && j >= 4)) continue;
      const int channel = 8 * part->block + (operand.single ? 2 * j + side : j);
      channels.channel[side][j] = static_cast<std::int16_t>(channel);
      channels.factor[side][j] = std::ldexp(steps[channel], part->code_bit - (part->position - operand.shift));
    }
  }
  return channels;
}

/// Where the planes of one side begin in shared memory: full pieces, then what is left.
struct Planes {
  int first_full, full, half;  // half: its plane, if the row has 8 bytes more
  [[nodiscard]] CodedSource source(const Operand& operand) const {
    const int plane = operand.piece < full ? first_full + operand.piece : half;
    return kNewSource | static_cast<CodedSource>(operand.shift) << 16 | static_cast<CodedSource>(plane * kPlaneBytes);
  }
};

void fill_keys(const std::vector<Operand>& operands, const Planes& planes, const float* steps, CodedHeadTable& table) {
  CodedSource before = 0;
  int count = 0;
  const auto add = [&](const Operand* operand) {
    if (count == kMostKeyOperands) throw std::invalid_argument("a KV head's keys have too many pieces: use fewer bits");
    CodedKeyPair& pair = table.key_pair[count / 2];
    std::uint32_t& mask = count % 2 == 0 ? pair.mask0 : pair.mask1;
    CodedSource& source = count % 2 == 0 ? pair.source0 : pair.source1;
    if (operand != nullptr) {
      mask = 0x00010001U * (operand->low_mask() | operand->high_mask() << 8);
      const CodedSource here = planes.source(*operand);
      source = here == before ? 0 : here;
      before = here;
      table.keys[count] = channels_of(*operand, steps);
    }
    ++count;
  };
  for (const bool wide : {true, false}) {
    for (const Operand& operand : operands) {
      if (operand.wide == wide) add(&operand);
    }
    if (count % 2 == 1) add(nullptr);
    if (wide) table.wide_key_pairs = count / 2;
  }
  table.key_pairs = count / 2;
}

void fill_values(const std::vector<Operand>& operands, const Planes& planes, const float* steps,
                 CodedHeadTable& table) {
  if (operands.size() > kMostValueOperands) {
    throw std::invalid_argument("a KV head's values have too many pieces: use fewer bits");
  }
  CodedSource before = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const CodedSource here = planes.source(operands[i]) | (operands[i].wide ? 0 : kNarrowSource);
    table.value_operand[i] = {0x00010001U * operands[i].low_mask(), 0x00010001U * operands[i].high_mask(),
                              here == before ? 0 : here, 0};
    before = here;
    table.values[i] = channels_of(operands[i], steps);
  }
  table.value_operands = static_cast<int>(operands.size());
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
    const int k_bytes = bytes_of_string(k_bits, blocks), v_bytes = bytes_of_string(v_bits, blocks);
    table.first_byte = layout.token_bytes;
    table.full_planes = k_bytes / 2 + v_bytes / 2;
    table.half_planes = k_bytes % 2 + v_bytes % 2;
    const std::vector<Part> k_parts = parts_of(k_bits, blocks), v_parts = parts_of(v_bits, blocks);
    fill_keys(operands_of(k_parts, true), {0, k_bytes / 2, table.full_planes}, k_steps, table);
    fill_values(operands_of(v_parts, false), {k_bytes / 2, v_bytes / 2, table.full_planes + k_bytes % 2}, v_steps,
                table);
    layout.token_bytes += 16 * table.full_planes + 8 * table.half_planes + 4;
    layout.key_operands = std::max(layout.key_operands, 2 * table.key_pairs);
    layout.value_operands = std::max(layout.value_operands, table.value_operands);
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
