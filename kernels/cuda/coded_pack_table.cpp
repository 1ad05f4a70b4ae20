// SPDX-License-Identifier: MIT
#include "kernels/cuda/coded_pack_table.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "kernels/coded_turn.hpp"
#include "kernels/cuda/coded_layout.hpp"
#include "kernels/reference/coded_page.hpp"
#include "kernels/reference/coded_row.hpp"
#include "kernels/server_arguments.hpp"

namespace oscar::cuda {
namespace {

void fill_scales(CodedPackScales& to) {
  for (int byte = 0; byte < 256; ++byte) {
    to.scale[byte] = reference::coded_scale(byte), to.inverse[byte] = 1.0F / to.scale[byte];
    to.least[byte] = reference::least_coded_scale(byte);
  }
}

/// Channels and levels of a side.
void fill_channels(const std::uint8_t* bits, const float* steps, const float* sigmas, int blocks, CodedPackSide& to) {
  for (int block = 0; block < blocks; ++block) {
    const auto levels = static_cast<float>(1 << bits[block]);
    to.levels[block] = levels;
    if (bits[block] == 0) continue;
    to.stored = block + 1;
    if (bits[block] >= reference::kWideBits) to.wide = block + 1;
    for (int i = 8 * block; i < 8 * block + 8; ++i) {
      if (!(sigmas[i] > 0) || !std::isfinite(sigmas[i])) throw std::invalid_argument("sigmas must be positive");
      const float inverse = 1.0F / sigmas[i];
      to.channel[i] = {inverse * inverse, 1.0F / steps[i] / levels, steps[i], inverse};
    }
  }
  to.wide_count = static_cast<float>(8 * to.wide), to.narrow_count = static_cast<float>(8 * (to.stored - to.wide));
}

/// Of which piece a byte of a string is, of so many bytes: the piece of 8 bytes, if there is one, is the first.
int piece_of(int byte, int bytes) { return (byte + bytes % 2) / 2; }

void fill_parts(std::span<const std::uint8_t> bits, CodedPackSide& to) {
  const int bytes = reference::bytes_of_string(bits);
  const std::vector<reference::CodedPart> parts = reference::parts_of(bits);
  to.full = bytes / 2, to.half = bytes % 2;
  int count = 0;
  for (int piece = 0; piece < to.full + to.half; ++piece) {
    for (const bool wide : {true, false}) {
      for (const reference::CodedPart& part : parts) {
        if (part.wide != wide || piece_of(part.byte, bytes) != piece) continue;
        const float levels = to.levels[part.block];
        const int word_bit = (part.byte + bytes) % 2 * 8 * (piece < to.half ? 0 : 1) + part.position;
        to.part[count++] = {levels,
                            kFloorBase + levels - 1,
                            0.5F * (levels - 1),
                            std::ldexp(1.0F, word_bit - part.code_bit),
                            0xff000000U | ((1U << part.width) - 1) << part.code_bit,
                            part.block,
                            part.code_bit == 0 ? 1.0F : 0.0F,
                            0};
      }
      to.end[piece][wide ? 0 : 1] = count;
    }
  }
}

}  // namespace

std::vector<unsigned char> coded_pack_table(const oscar_coded_format& format, const float* k_sigmas,
                                            const float* v_sigmas) {
  oscar_coded_layout layout;
  const std::vector<CodedHeadTable> heads = coded_tables(format, layout);  // checks the format
  const int blocks = format.head_dim / 8, count = format.num_kv_heads;
  std::vector<CodedPackSide> sides(static_cast<std::size_t>(2 * count));
  for (int i = 0; i < 2 * count; ++i) {
    const int head = i % count;
    const CodedHeadTable& whole = heads[static_cast<std::size_t>(head)];
    const bool keys = i < count;
    const std::uint8_t* const bits = (keys ? format.k_bits : format.v_bits) + head * blocks;
    CodedPackSide& side = sides[static_cast<std::size_t>(i)];
    fill_channels(bits, (keys ? format.k_steps : format.v_steps) + head * format.head_dim,
                  (keys ? k_sigmas : v_sigmas) + head * format.head_dim, blocks, side);
    fill_parts({bits, static_cast<std::size_t>(blocks)}, side);
    side.first_byte = whole.first_byte;
    const int key_string = 2 * whole.key_full_planes + whole.key_half_planes;
    const int both_strings = 2 * whole.full_planes + whole.half_planes;
    const reference::CodedPlanes planes =
        reference::planes_of_head(0, key_string, both_strings - key_string)[keys ? 0 : 1];
    side.full_at = static_cast<int>(planes.full), side.half_at = static_cast<int>(planes.half);
    side.scales_at = static_cast<int>(planes.scales);
  }
  std::vector<unsigned char> table(sizeof(CodedPackScales) + sides.size() * sizeof(CodedPackSide));
  CodedPackScales scales;
  fill_scales(scales);
  std::memcpy(table.data(), &scales, sizeof scales);
  std::memcpy(table.data() + sizeof scales, sides.data(), sides.size() * sizeof(CodedPackSide));
  return table;
}

}  // namespace oscar::cuda

extern "C" __attribute__((visibility("default"))) int oscar_coded_pack_table_of(const oscar_coded_format* format,
                                                                                const float* k_sigmas,
                                                                                const float* v_sigmas,
                                                                                std::int64_t* table_bytes,
                                                                                void* table) {
  using namespace oscar::cuda;
  if (format == nullptr || k_sigmas == nullptr || v_sigmas == nullptr || table_bytes == nullptr) {
    return refuse("format, sigmas and table_bytes must not be null");
  }
  try {
    const std::vector<unsigned char> bytes = coded_pack_table(*format, k_sigmas, v_sigmas);
    *table_bytes = static_cast<std::int64_t>(bytes.size());
    if (table != nullptr) std::memcpy(table, bytes.data(), bytes.size());
    return 0;
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
}

extern "C" __attribute__((visibility("default"))) int oscar_coded_turn_table_of(const oscar_coded_turn* turn,
                                                                                std::int64_t* table_bytes,
                                                                                void* table) {
  using namespace oscar::cuda;
  if (turn == nullptr || table_bytes == nullptr || turn->pairs == nullptr || turn->frequency == nullptr ||
      turn->basis == nullptr || turn->inverse == nullptr) {
    return refuse("pairs, frequencies, bases and table_bytes must not be null");
  }
  try {
    const std::vector<oscar::CodedTurnPair> pairs = oscar::coded_turn_pairs(*turn);
    *table_bytes = static_cast<std::int64_t>(pairs.size() * sizeof(oscar::CodedTurnPair));
    if (table != nullptr) std::memcpy(table, pairs.data(), static_cast<std::size_t>(*table_bytes));
    return 0;
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
}
