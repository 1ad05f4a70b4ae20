// SPDX-License-Identifier: MIT
#include "tensor/gguf.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <set>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "tensor/ggml_blocks.hpp"
#include "tensor/gguf_cursor.hpp"

namespace oscar {
namespace {

constexpr std::uint64_t kMaxAlignment = 1U << 20U;
constexpr std::uint64_t kFrontBytes = 1U << 20U;  // loaded at least, of a file at a server

/// Bytes of a tensor; 0: its type is not known here. Throws through `cursor` on impossible sizes.
std::uint64_t bytes_of(const GgufTensor& tensor, const GgufCursor& cursor) {
  std::uint64_t count = 1;
  for (const std::uint64_t dim : tensor.dims) {
    if (dim == 0) cursor.fail("tensor " + tensor.name + " has a dimension of 0");
    if (__builtin_mul_overflow(count, dim, &count)) cursor.fail("tensor " + tensor.name + " is impossibly large");
  }
  const GgmlType* type = find_ggml_type(tensor.type);
  if (type == nullptr) return 0;
  std::uint64_t bytes = 0;
  const std::uint64_t row = tensor.dims.empty() ? 1 : tensor.dims.front();
  if (row % type->values != 0 || __builtin_mul_overflow(count / type->values, type->bytes, &bytes)) {
    cursor.fail("the shape of tensor " + tensor.name + " does not fit its type");
  }
  return bytes;
}

/// The number whose shortest decimal form is that of `value`: 1e-5, not 9.99999974738e-06.
double decimal(float value) {
  std::array<char, 32> text{};
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value);
  double number = value;
  std::from_chars(text.data(), written.ptr, number);
  return number;
}

/// A metadata value that is not an array.
Json read_scalar(GgufCursor& cursor, std::uint32_t type) {
  switch (type) {
    case 0:
      return cursor.read<std::uint8_t>();
    case 1:
      return cursor.read<std::int8_t>();
    case 2:
      return cursor.read<std::uint16_t>();
    case 3:
      return cursor.read<std::int16_t>();
    case kGgufU32:
      return cursor.read<std::uint32_t>();
    case 5:
      return cursor.read<std::int32_t>();
    case kGgufF32:
      return decimal(cursor.read<float>());
    case kGgufBool:
      return cursor.read<std::uint8_t>() != 0;
    case kGgufString:
      return cursor.read_string();
    case 10:
      return cursor.read<std::uint64_t>();
    case 11:
      return cursor.read<std::int64_t>();
    case kGgufF64:
      return cursor.read<double>();
    default:
      cursor.fail("unknown metadata type " + std::to_string(type));
  }
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : path_(path.string()), file_(open_place(path)) {
  const std::uint64_t size = file_->bytes().size();
  std::uint64_t loaded = 0;
  GgufCursor cursor(file_->bytes(), path_, [&](std::uint64_t count) {
    if (count <= loaded) return;
    loaded = std::min(size, std::max(2 * count, kFrontBytes));
    file_->load_front(loaded);
  });
  const auto magic = cursor.take(4);
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) cursor.fail("it does not begin with \"GGUF\"");
  version_ = cursor.read<std::uint32_t>();
  if (version_ < 2 || version_ > 3) cursor.fail("version " + std::to_string(version_) + " is not 2 or 3");
  const auto num_tensors = cursor.read<std::uint64_t>();
  const auto num_entries = cursor.read<std::uint64_t>();
  std::set<std::string> keys;
  for (std::uint64_t i = 0; i < num_entries; ++i) {
    GgufEntry entry{cursor.read_string(), cursor.read<std::uint32_t>(), {}};
    if (!keys.insert(entry.key).second) cursor.fail("metadata " + entry.key + " is there twice");
    entry.value = cursor.take_value(entry.type);
    entries_.push_back(std::move(entry));
  }
  for (std::uint64_t i = 0; i < num_tensors; ++i) {
    GgufTensor tensor;
    tensor.name = cursor.read_string();
    const auto dimensions = cursor.read<std::uint32_t>();
    if (dimensions > 8) cursor.fail("tensor " + tensor.name + " has " + std::to_string(dimensions) + " dimensions");
    for (std::uint32_t d = 0; d < dimensions; ++d) tensor.dims.push_back(cursor.read<std::uint64_t>());
    tensor.type = cursor.read<std::uint32_t>();
    offsets_.push_back(cursor.read<std::uint64_t>());
    tensors_.push_back(std::move(tensor));
  }
  const auto asked = number("general.alignment");
  if (asked) alignment_ = *asked;
  if (!asked && keys.contains("general.alignment")) cursor.fail("general.alignment is of another type than u32");
  if (alignment_ == 0 || alignment_ > kMaxAlignment) cursor.fail("alignment " + std::to_string(alignment_));
  check_tensors(gguf_aligned(cursor.position(), alignment_));
}

void GgufFile::check_tensors(std::uint64_t payload) {
  const GgufCursor cursor(file_->bytes(), path_);
  const std::uint64_t size = file_->bytes().size();
  std::set<std::string> seen;
  std::set<std::uint64_t> taken;
  std::set<std::uint64_t> starts(offsets_.begin(), offsets_.end());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    GgufTensor& tensor = tensors_[i];
    const std::uint64_t begin = offsets_[i];
    if (!seen.insert(tensor.name).second) cursor.fail("tensor " + tensor.name + " is there twice");
    if (!taken.insert(begin).second) cursor.fail("tensor " + tensor.name + " overlaps with another");
    if (payload > size || begin > size - payload) cursor.fail("tensor " + tensor.name + " lies beyond the end");
    const auto next = starts.upper_bound(begin);
    const std::uint64_t room = (next == starts.end() ? size - payload : std::min(*next, size - payload)) - begin;
    if (bytes_of(tensor, cursor) > room) {
      cursor.fail("tensor " + tensor.name + " is truncated or overlaps with another");
    }
    tensor.data = file_->bytes().subspan(payload + begin, room);
  }
}

const GgufTensor* GgufFile::find(const std::string& name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

std::optional<std::string> GgufFile::text(const std::string& key) const {
  for (const GgufEntry& entry : entries_) {
    if (entry.key == key && entry.type == kGgufString) return GgufCursor(entry.value, path_).read_string();
  }
  return std::nullopt;
}

std::optional<std::uint32_t> GgufFile::number(const std::string& key) const {
  for (const GgufEntry& entry : entries_) {
    if (entry.key == key && entry.type == kGgufU32) return GgufCursor(entry.value, path_).read<std::uint32_t>();
  }
  return std::nullopt;
}

Json GgufFile::value(const std::string& key) const {
  const auto entry = std::ranges::find_if(entries_, [&](const GgufEntry& each) { return each.key == key; });
  if (entry == entries_.end()) return nullptr;
  GgufCursor cursor(entry->value, path_);
  if (entry->type != kGgufArray) return read_scalar(cursor, entry->type);
  const auto type = cursor.read<std::uint32_t>();
  Json list = Json::array();
  for (auto left = cursor.read<std::uint64_t>(); left > 0; --left) list.push_back(read_scalar(cursor, type));
  return list;
}

Tensor GgufFile::read(const std::string& name) const {
  const GgufTensor* tensor = find(name);
  if (tensor == nullptr) throw DataError("there is no tensor " + name, path_, "check that this is the right file");
  const bool known = tensor->type == kGgmlF32 || tensor->type == kGgmlF16 || tensor->type == kGgmlBF16;
  if (!known) {
    throw DataError("tensor " + name + " has ggml's type " + std::to_string(tensor->type), path_,
                    "only F32, F16 and BF16 can be read");
  }
  const DType dtype = tensor->type == kGgmlF32 ? DType::kF32 : tensor->type == kGgmlF16 ? DType::kF16 : DType::kBF16;
  std::vector<std::int64_t> shape;
  for (auto dim = tensor->dims.rbegin(); dim != tensor->dims.rend(); ++dim) {
    shape.push_back(static_cast<std::int64_t>(*dim));
  }
  Tensor out(dtype, std::move(shape));
  file_->read(offset_of(tensor->data), out.data);
  return out;
}

}  // namespace oscar
