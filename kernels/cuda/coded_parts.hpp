// SPDX-License-Identifier: MIT
// Where the bits of the codes of a packed row lie, as oscar/coded_attention.h defines it: for those who read rows and
// for those who write them.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar::cuda {

/// The bits of the codes of a block of 8 channels that lie in one byte of each string.
struct CodedPart {
  int block, byte, position, width;  // byte of a string, lowest bit in it
  int code_bit;                      // the lowest bit of the code that is here
  bool wide;
};

/// Bytes of a string. bits: of the blocks' channels.
[[nodiscard]] int bytes_of_string(const std::uint8_t* bits, int blocks);

/// Places the blocks as the header says, each where most bits are free.
[[nodiscard]] std::vector<CodedPart> parts_of(const std::uint8_t* bits, int blocks);

}  // namespace oscar::cuda
