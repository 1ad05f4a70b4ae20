// SPDX-License-Identifier: MIT
// Where the rows of the coded cache lie in the pages that servers read. oscar/coded_attention.h defines the bytes; this
// is the definition as code, for all who read or write them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar::reference {

/// The bits that the codes of a block of 8 channels have in one byte of each of the eight strings of a row.
struct CodedPart {
  int block, byte, position, width;  // byte of a string, lowest bit in it
  int code_bit;                      // the lowest bit of the code that is here
  bool wide;
};

/// Bytes of a string, of blocks whose channels have so many bits.
[[nodiscard]] int bytes_of_string(std::span<const std::uint8_t> bits);
/// Places the blocks in order, each where most bits are free.
[[nodiscard]] std::vector<CodedPart> parts_of(std::span<const std::uint8_t> bits);

/// Where a page of one token has the rows of one side of a KV head: the pieces of 16 bytes, that of 8, and the two
/// scales. In a page of P tokens the planes of these begin at P times that.
struct CodedPlanes {
  std::int64_t full = 0, half = 0, scales = 0;
  int first_scale = 0;  // of the four scales of a token
};
/// The planes of the keys and of the values of a head that begins at byte `first`.
[[nodiscard]] std::array<CodedPlanes, 2> planes_of_head(std::int64_t first, int key_string, int value_string);
/// Bytes of a token that a head takes.
[[nodiscard]] constexpr int head_bytes(int key_string, int value_string) { return 8 * (key_string + value_string) + 4; }

/// Writes and reads the rows of one side of a KV head.
class CodedRows {
 public:
  /// Rows of a head's side in pages. Throws std::logic_error as require_valid() does.
  CodedRows(CodedFormat format, const CodedPlanes& planes);
  /// Rows alone, as pages of one token that hold nothing else: bytes() each.
  explicit CodedRows(CodedFormat format);

  [[nodiscard]] const CodedFormat& format() const { return format_; }
  /// Bytes of a row and its two scales in a page.
  [[nodiscard]] std::size_t bytes() const { return 8 * static_cast<std::size_t>(string_bytes_) + 2; }

  /// Encodes row (d) as that of `token` in a page of page_size tokens.
  void write(std::span<const float> row, std::uint8_t* page, std::int64_t page_size = 1, std::int64_t token = 0) const;
  /// Decodes it; channels that are not stored become 0.
  void read(const std::uint8_t* page, std::span<float> row, std::int64_t page_size = 1, std::int64_t token = 0) const;

 private:
  /// A byte of the strings: that of string 0, and how far apart those of the strings are.
  struct Place {
    std::int64_t first, stride;
  };
  [[nodiscard]] Place place(int byte, std::int64_t page_size, std::int64_t token) const;

  CodedFormat format_;
  int string_bytes_ = 0;
  std::vector<CodedPart> parts_;
  CodedPlanes planes_;
};

}  // namespace oscar::reference
