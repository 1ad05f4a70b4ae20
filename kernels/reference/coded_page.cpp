// SPDX-License-Identifier: MIT
#include "kernels/reference/coded_page.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "kernels/reference/coded_row.hpp"

namespace oscar::reference {
namespace {

/// The bits of the channels of each block.
std::vector<std::uint8_t> bits_of_blocks(const CodedFormat& format) {
  require_valid(format);
  std::vector<std::uint8_t> bits;
  for (std::size_t i = 0; i < format.levels.size(); i += kCodedBlock)
    bits.push_back(static_cast<std::uint8_t>(std::countr_zero(static_cast<unsigned>(format.levels[i]))));
  return bits;
}

}  // namespace

int bytes_of_string(std::span<const std::uint8_t> bits) {
  return (std::accumulate(bits.begin(), bits.end(), 0) + 7) / 8;
}

std::vector<CodedPart> parts_of(std::span<const std::uint8_t> bits) {
  std::vector<CodedPart> parts;
  std::vector<int> used(static_cast<std::size_t>(bytes_of_string(bits)));
  for (std::size_t block = 0; block < bits.size(); ++block) {
    for (int done = 0; done < bits[block];) {
      const auto emptiest = std::ranges::min_element(used);
      const int width = std::min(bits[block] - done, 8 - *emptiest);
      parts.push_back({static_cast<int>(block), static_cast<int>(emptiest - used.begin()), *emptiest, width, done,
                       bits[block] >= kWideBits});
      done += width, *emptiest += width;
    }
  }
  return parts;
}

std::array<CodedPlanes, 2> planes_of_head(std::int64_t first, int key_string, int value_string) {
  const std::int64_t half = first + 16 * (key_string / 2 + value_string / 2);
  const std::int64_t scales = first + 8 * (key_string + value_string);
  return {{{first, half, scales, 0}, {first + 16 * (key_string / 2), half + 8 * (key_string % 2), scales, 2}}};
}

CodedRows::CodedRows(CodedFormat format, const CodedPlanes& planes) : format_(std::move(format)), planes_(planes) {
  const std::vector<std::uint8_t> bits = bits_of_blocks(format_);
  string_bytes_ = bytes_of_string(bits), parts_ = parts_of(bits);
}

CodedRows::CodedRows(CodedFormat format) : CodedRows(std::move(format), {}) {
  planes_ = planes_of_head(0, string_bytes_, 0)[0];
}

CodedRows::Place CodedRows::place(int byte, std::int64_t page_size, std::int64_t token) const {
  const int in_pieces = byte - string_bytes_ % 2;  // byte 0 of an odd number has a piece of its own
  if (in_pieces < 0) return {planes_.half * page_size + 8 * token, 1};
  return {(planes_.full + 16 * (in_pieces / 2)) * page_size + 16 * token + in_pieces % 2, 2};
}

void CodedRows::write(std::span<const float> row, std::uint8_t* page, std::int64_t page_size,
                      std::int64_t token) const {
  const CodedCodes coded = coded_codes(format_, row);
  for (int byte = 0; byte < string_bytes_; ++byte) {
    const Place at = place(byte, page_size, token);
    for (int string = 0; string < 8; ++string) page[at.first + string * at.stride] = 0;
  }
  for (const CodedPart& part : parts_) {
    const Place at = place(part.byte, page_size, token);
    for (int string = 0; string < 8; ++string) {
      const int code = coded.codes[static_cast<std::size_t>(8 * part.block + string)];
      page[at.first + string * at.stride] |=
          static_cast<std::uint8_t>((code >> part.code_bit & ((1 << part.width) - 1)) << part.position);
    }
  }
  std::ranges::copy(coded.scales, page + planes_.scales * page_size + 4 * token + planes_.first_scale);
}

void CodedRows::read(const std::uint8_t* page, std::span<float> row, std::int64_t page_size, std::int64_t token) const {
  const std::uint8_t* const scales = page + planes_.scales * page_size + 4 * token + planes_.first_scale;
  CodedCodes coded{std::vector<std::uint8_t>(row.size()), {scales[0], scales[1]}};
  for (const CodedPart& part : parts_) {
    const Place at = place(part.byte, page_size, token);
    for (int string = 0; string < 8; ++string) {
      const int bits = page[at.first + string * at.stride] >> part.position & ((1 << part.width) - 1);
      coded.codes[static_cast<std::size_t>(8 * part.block + string)] |=
          static_cast<std::uint8_t>(bits << part.code_bit);
    }
  }
  coded_values(format_, coded, row);
}

}  // namespace oscar::reference
