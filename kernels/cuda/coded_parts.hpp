// SPDX-License-Identifier: MIT
// Where the bits of the codes of a packed row lie, as oscar/coded_attention.h defines it: for those who read rows and
// for those who write them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/coded_layout.hpp"

namespace oscar::cuda {

/// The bits of the codes of a block of 8 channels that lie in one byte of each string.
struct CodedPart {
  int block, byte, position, width;  // byte of a string, lowest bit in it
  int code_bit;                      // the lowest bit of the code that is here
  bool wide;
};

/// Bytes of a string. bits: of the blocks' channels.
[[nodiscard]] inline int bytes_of_string(const std::uint8_t* bits, int blocks) {
  int sum = 0;
  for (int block = 0; block < blocks; ++block) sum += bits[block];
  return (sum + 7) / 8;
}

/// Places the blocks as the header says, each where most bits are free.
[[nodiscard]] inline std::vector<CodedPart> parts_of(const std::uint8_t* bits, int blocks) {
  std::vector<CodedPart> parts;
  std::vector<int> used(static_cast<std::size_t>(bytes_of_string(bits, blocks)));
  for (int block = 0; block < blocks; ++block) {
    for (int done = 0; done < bits[block];) {
      const auto emptiest = std::min_element(used.begin(), used.end());
      const int width = std::min(bits[block] - done, 8 - *emptiest);
      parts.push_back(
          {block, static_cast<int>(emptiest - used.begin()), *emptiest, width, done, bits[block] >= kWideBits});
      done += width, *emptiest += width;
    }
  }
  return parts;
}

}  // namespace oscar::cuda
