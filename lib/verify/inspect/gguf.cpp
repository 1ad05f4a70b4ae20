// SPDX-License-Identifier: MIT
#include <array>
#include <cstring>
#include <map>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "verify/inspect/kinds.hpp"

namespace oscar {
namespace {

/// Reads little-endian values one after the other and never past the end.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

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
    const auto taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }
  [[nodiscard]] std::size_t position() const { return position_; }
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError("not a sound GGUF file: " + what, where_ + ", byte " + std::to_string(position_),
                    "write or fetch the file again");
  }

 private:
  std::span<const std::byte> bytes_;
  std::string where_;
  std::size_t position_ = 0;
};

constexpr std::uint32_t kString = 8, kArray = 9, kU32 = 4;
/// Bytes of the metadata types 0 … 12; 0 where the length is in the file.
constexpr std::array<std::uint64_t, 13> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

void skip_value(Cursor& cursor, std::uint32_t type) {
  if (type >= kTypeBytes.size()) cursor.fail("unknown metadata type " + std::to_string(type));
  if (type == kString) {
    (void)cursor.read_string();
  } else if (type == kArray) {
    const auto item = cursor.read<std::uint32_t>();
    const auto count = cursor.read<std::uint64_t>();
    if (item == kArray) cursor.fail("an array of arrays");
    for (std::uint64_t i = 0; i < count; ++i) skip_value(cursor, item);
  } else {
    cursor.take(kTypeBytes[type]);
  }
}

struct TensorTable {
  std::uint64_t last_offset = 0;
  std::int64_t key_rotations = 0, value_rotations = 0;
};

TensorTable read_tensor_table(Cursor& cursor, std::uint64_t count) {
  TensorTable table;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string name = cursor.read_string();
    const auto dimensions = cursor.read<std::uint32_t>();
    if (dimensions > 4) cursor.fail("tensor " + name + " has " + std::to_string(dimensions) + " dimensions");
    cursor.take(dimensions * sizeof(std::uint64_t) + sizeof(std::uint32_t));
    table.last_offset = std::max(table.last_offset, cursor.read<std::uint64_t>());
    if (name.ends_with("attn_k_rot.weight")) ++table.key_rotations;
    if (name.ends_with("attn_v_rot.weight")) ++table.value_rotations;
  }
  return table;
}

}  // namespace

Inspection inspect_gguf(const std::filesystem::path& path) {
  const MappedFile file(path);
  Cursor cursor(file.bytes(), path.string());
  cursor.take(4);  // "GGUF"
  const auto version = cursor.read<std::uint32_t>();
  if (version < 2 || version > 3) cursor.fail("version " + std::to_string(version) + " is not 2 or 3");
  const auto tensors = cursor.read<std::uint64_t>();
  const auto entries = cursor.read<std::uint64_t>();
  std::uint64_t alignment = 32;
  std::string architecture = "unknown";
  for (std::uint64_t i = 0; i < entries; ++i) {
    const std::string key = cursor.read_string();
    const auto type = cursor.read<std::uint32_t>();
    if (key == "general.alignment" && type == kU32) {
      alignment = cursor.read<std::uint32_t>();
    } else if (key == "general.architecture" && type == kString) {
      architecture = cursor.read_string();
    } else {
      skip_value(cursor, type);
    }
  }
  const TensorTable table = read_tensor_table(cursor, tensors);
  if (alignment == 0 || alignment > 1U << 20U) cursor.fail("alignment " + std::to_string(alignment));
  const std::uint64_t payload = (cursor.position() + alignment - 1) / alignment * alignment;
  const std::uint64_t size = file.bytes().size();
  if (tensors > 0 && (payload > size || table.last_offset >= size - payload)) {
    cursor.fail("the last tensor lies beyond the end of the file");
  }
  return {"GGUF file",
          {{"version", version},
           {"architecture", architecture},
           {"tensors", tensors},
           {"metadata_entries", entries},
           {"key_rotations", table.key_rotations},
           {"value_rotations", table.value_rotations}},
          {}};
}

}  // namespace oscar
