// SPDX-License-Identifier: MIT
#include "kernels/cuda/coded_parts.hpp"

#include <algorithm>

#include "kernels/cuda/coded_layout.hpp"

namespace oscar::cuda {

int bytes_of_string(const std::uint8_t* bits, int blocks) {
  int sum = 0;
  for (int block = 0; block < blocks; ++block) sum += bits[block];
  return (sum + 7) / 8;
}

std::vector<CodedPart> parts_of(const std::uint8_t* bits, int blocks) {
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
