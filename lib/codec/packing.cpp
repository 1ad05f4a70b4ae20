// SPDX-License-Identifier: MIT
#include "codec/packing.hpp"

#include "base/check.hpp"

namespace oscar {

void pack_int2(std::span<const std::uint8_t> codes, std::span<std::uint8_t> bytes) {
  const std::size_t quarter = bytes.size();
  OSCAR_CHECK(codes.size() == 4 * quarter);
  for (std::size_t i = 0; i < quarter; ++i) {
    unsigned byte = 0;
    for (unsigned part = 0; part < 4; ++part) {
      const unsigned code = codes[i + part * quarter];
      OSCAR_CHECK(code < 4);
      byte |= code << (2 * part);
    }
    bytes[i] = static_cast<std::uint8_t>(byte);
  }
}

void unpack_int2(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> codes) {
  const std::size_t quarter = bytes.size();
  OSCAR_CHECK(codes.size() == 4 * quarter);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::size_t part = i / quarter;
    codes[i] = static_cast<std::uint8_t>((bytes[i % quarter] >> (2 * part)) & 3U);
  }
}

}  // namespace oscar
