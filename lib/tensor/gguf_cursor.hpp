// SPDX-License-Identifier: MIT
// Values of a GGUF file one after the other. For the files of this folder that read and write GGUF.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "base/errors.hpp"

namespace oscar {

/// GGUF's numbers of metadata types that this program asks for.
inline constexpr std::uint32_t kGgufU32 = 4, kGgufF32 = 6, kGgufBool = 7, kGgufString = 8, kGgufArray = 9,
                               kGgufF64 = 12;
/// The bytes of a value of each metadata type 0 … 12; 0 where the file says the length.
inline constexpr std::array<std::uint64_t, 13> kGgufTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/// ggml's numbers of types of tensors.
inline constexpr std::uint32_t kGgmlF32 = 0, kGgmlF16 = 1, kGgmlBF16 = 30;

/// The next multiple of `alignment`, where a tensor may begin.
[[nodiscard]] constexpr std::uint64_t gguf_aligned(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

/// Reads little-endian values one after the other and never past the end.
class GgufCursor {
 public:
  /// load(count) makes the first `count` bytes readable, and is called before any of them is touched. All of them are
  /// readable if there is none.
  GgufCursor(std::span<const std::byte> bytes, std::string where, std::function<void(std::uint64_t count)> load = {})
      : bytes_(bytes), where_(std::move(where)), load_(std::move(load)) {}

  template <class T>
  T read() {
    T value{};
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string read_string() {
    const auto bytes = take(read<std::uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size() - position_) fail("the file ends too early");
    if (load_) load_(position_ + count);
    const auto taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }
  /// The bytes of one metadata value.
  std::span<const std::byte> take_value(std::uint32_t type) {
    const std::size_t begin = position_;
    skip_value(type);
    return bytes_.subspan(begin, position_ - begin);
  }
  [[nodiscard]] std::size_t position() const { return position_; }
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError("not a sound GGUF file: " + what, where_ + ", byte " + std::to_string(position_),
                    "write or fetch the file again");
  }

 private:
  void skip_value(std::uint32_t type) {
    if (type >= kGgufTypeBytes.size()) fail("unknown metadata type " + std::to_string(type));
    if (type == kGgufString) {
      take(read<std::uint64_t>());
    } else if (type == kGgufArray) {
      const auto item = read<std::uint32_t>();
      const auto count = read<std::uint64_t>();
      if (item == kGgufArray) fail("an array of arrays");
      // Each item has a byte at least: a forged count ends with the file, not with patience.
      for (std::uint64_t i = 0; i < count; ++i) skip_value(item);
    } else {
      take(kGgufTypeBytes[type]);
    }
  }

  std::span<const std::byte> bytes_;
  std::string where_;
  std::function<void(std::uint64_t count)> load_;
  std::size_t position_ = 0;
};

}  // namespace oscar
