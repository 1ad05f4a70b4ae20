// SPDX-License-Identifier: MIT
#include "tensor/gguf.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <functional>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "tensor/ggml_blocks.hpp"

namespace oscar {
namespace {

/// GGUF's numbers of metadata types that this program asks for.
constexpr std::uint32_t kGgufU32 = 4, kGgufF32 = 6, kGgufBool = 7, kGgufString = 8, kGgufArray = 9, kGgufF64 = 12;
/// The bytes of a value of each metadata type 0 … 12; 0 where the file says the length.
constexpr std::array<std::uint64_t, 13> kGgufTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/// ggml's numbers of types of tensors.
constexpr std::uint32_t kGgmlF32 = 0, kGgmlF16 = 1, kGgmlBF16 = 30;

/// The next multiple of `alignment`, where a tensor may begin.
constexpr std::uint64_t gguf_aligned(std::uint64_t value, std::uint64_t alignment) {
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

/// A header under construction.
class Header {
 public:
  template <class T>
  void add(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(const std::string& text) {
    add(std::uint64_t{text.size()});
    bytes_ += text;
  }
  void add(std::span<const std::byte> bytes) {
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void pad(std::uint64_t alignment) { bytes_.resize(gguf_aligned(bytes_.size(), alignment), '\0'); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

/// A tensor of the copy: from the source, or added.
struct Outgoing {
  std::string name;
  std::vector<std::uint64_t> dims;
  std::uint32_t type = kGgmlF32;
  std::span<const std::byte> data;
};

template <class List>
bool names(const List& added, const std::string& name) {
  return std::any_of(added.begin(), added.end(), [&](const auto& item) { return item.first == name; });
}

Header make_header(const GgufFile& source, const std::vector<Outgoing>& tensors,
                   const std::vector<std::pair<std::string, std::string>>& texts) {
  Header header;
  header.add(std::as_bytes(std::span("GGUF", 4)));
  header.add(source.version());
  header.add(std::uint64_t{tensors.size()});
  const auto kept = [&](const GgufEntry& entry) { return !names(texts, entry.key); };
  header.add(static_cast<std::uint64_t>(std::count_if(source.entries().begin(), source.entries().end(), kept)) +
             texts.size());
  for (const GgufEntry& entry : source.entries()) {
    if (!kept(entry)) continue;
    header.add(entry.key);
    header.add(entry.type);
    header.add(entry.value);
  }
  for (const auto& [key, text] : texts) {
    header.add(key);
    header.add(kGgufString);
    header.add(text);
  }
  std::uint64_t offset = 0;
  for (const Outgoing& tensor : tensors) {
    header.add(tensor.name);
    header.add(static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::uint64_t dim : tensor.dims) header.add(dim);
    header.add(tensor.type);
    header.add(offset);
    offset = gguf_aligned(offset + tensor.data.size(), source.alignment());
  }
  header.pad(source.alignment());
  return header;
}

[[noreturn]] void throw_write(const std::filesystem::path& path) {
  throw IoError(std::string("cannot write: ") + std::strerror(errno), path.string(),
                "free some disk space or choose another place, then run again");
}

void write_all(std::FILE* file, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) throw_write(path);
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
  constexpr std::uint32_t kLargest = 0xffff;  // with its bytes turned, a small number is larger
  if (version_ > kLargest) {
    throw DataError("the GGUF file is for big-endian machines, which is not supported", path_,
                    "use the little-endian file of the model");
  }
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

void write_gguf_copy(const std::filesystem::path& path, const GgufFile& source,
                     const std::vector<std::pair<std::string, Tensor>>& tensors,
                     const std::vector<std::pair<std::string, std::string>>& texts) {
  std::vector<Outgoing> outgoing;
  for (const GgufTensor& tensor : source.tensors()) {
    if (!names(tensors, tensor.name)) outgoing.push_back({tensor.name, tensor.dims, tensor.type, tensor.data});
  }
  for (const auto& [name, tensor] : tensors) {
    OSCAR_CHECK(tensor.dtype == DType::kF32);
    outgoing.push_back({name, {tensor.shape.rbegin(), tensor.shape.rend()}, kGgmlF32, tensor.data});
  }
  AtomicFile out(path);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(out.temporary_path().c_str(), "wbe"), &std::fclose);
  if (file == nullptr) throw_write(path);
  write_all(file.get(), make_header(source, outgoing, texts).bytes(), path);
  for (const Outgoing& tensor : outgoing) {
    write_all(file.get(), tensor.data, path);
    const std::vector<std::byte> padding(gguf_aligned(tensor.data.size(), source.alignment()) - tensor.data.size());
    write_all(file.get(), padding, path);
  }
  if (std::fclose(file.release()) != 0) throw_write(path);
  out.commit();
}

}  // namespace oscar
