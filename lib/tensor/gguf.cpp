// SPDX-License-Identifier: MIT
#include "tensor/gguf.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>

#include "base/atomic_file.hpp"
#include "base/check.hpp"
#include "base/errors.hpp"

namespace oscar {
namespace {

constexpr std::uint32_t kTypeU32 = 4, kTypeString = 8, kTypeArray = 9;
/// Bytes of the metadata types 0 … 12; 0 where the length is in the file.
constexpr std::array<std::uint64_t, 13> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr std::uint32_t kF32 = 0, kF16 = 1, kBF16 = 30;
constexpr std::uint64_t kMaxAlignment = 1U << 20U;

/// Values and bytes of a block of each of ggml's types; 0 values: not known here.
struct Block {
  std::uint64_t values = 0, bytes = 0;
};
constexpr std::array<Block, 40> kBlocks = {
    {{1, 4},    {1, 2},     {32, 18},   {32, 20},   {},         {},         {32, 22},  {32, 24},  {32, 34},  {},
     {256, 84}, {256, 110}, {256, 144}, {256, 176}, {256, 210}, {256, 292}, {256, 66}, {256, 74}, {256, 98}, {256, 50},
     {32, 18},  {256, 110}, {256, 82},  {256, 136}, {1, 1},     {1, 2},     {1, 4},    {1, 8},    {1, 8},    {256, 56},
     {1, 2},    {},         {},         {},         {256, 54},  {256, 66},  {},        {},        {},        {32, 17}}};

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
    if (type >= kTypeBytes.size()) fail("unknown metadata type " + std::to_string(type));
    if (type == kTypeString) {
      take(read<std::uint64_t>());
    } else if (type == kTypeArray) {
      const auto item = read<std::uint32_t>();
      const auto count = read<std::uint64_t>();
      if (item == kTypeArray) fail("an array of arrays");
      // Each item has a byte at least: a forged count ends with the file, not with patience.
      for (std::uint64_t i = 0; i < count; ++i) skip_value(item);
    } else {
      take(kTypeBytes[type]);
    }
  }

  std::span<const std::byte> bytes_;
  std::string where_;
  std::size_t position_ = 0;
};

/// Bytes of a tensor; 0: its type is not known here. Throws through `cursor` on impossible sizes.
std::uint64_t bytes_of(const GgufTensor& tensor, const Cursor& cursor) {
  std::uint64_t count = 1;
  for (const std::uint64_t dim : tensor.dims) {
    if (__builtin_mul_overflow(count, dim, &count)) cursor.fail("tensor " + tensor.name + " is impossibly large");
  }
  const Block block = tensor.type < kBlocks.size() ? kBlocks[tensor.type] : Block{};
  if (block.values == 0) return 0;
  std::uint64_t bytes = 0;
  if (count % block.values != 0 || __builtin_mul_overflow(count / block.values, block.bytes, &bytes)) {
    cursor.fail("the shape of tensor " + tensor.name + " does not fit its type");
  }
  return bytes;
}

std::uint64_t aligned(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
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
  void pad(std::uint64_t alignment) { bytes_.resize(aligned(bytes_.size(), alignment), '\0'); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

/// A tensor of the copy: from the source, or added.
struct Outgoing {
  std::string name;
  std::vector<std::uint64_t> dims;
  std::uint32_t type = kF32;
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
    header.add(kTypeString);
    header.add(text);
  }
  std::uint64_t offset = 0;
  for (const Outgoing& tensor : tensors) {
    header.add(tensor.name);
    header.add(static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::uint64_t dim : tensor.dims) header.add(dim);
    header.add(tensor.type);
    header.add(offset);
    offset = aligned(offset + tensor.data.size(), source.alignment());
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

GgufFile::GgufFile(const std::filesystem::path& path) : path_(path.string()), file_(path) {
  Cursor cursor(file_.bytes(), path_);
  const auto magic = cursor.take(4);
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) cursor.fail("it does not begin with \"GGUF\"");
  version_ = cursor.read<std::uint32_t>();
  if (version_ < 2 || version_ > 3) cursor.fail("version " + std::to_string(version_) + " is not 2 or 3");
  const auto num_tensors = cursor.read<std::uint64_t>();
  const auto num_entries = cursor.read<std::uint64_t>();
  for (std::uint64_t i = 0; i < num_entries; ++i) {
    GgufEntry entry{cursor.read_string(), cursor.read<std::uint32_t>(), {}};
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
  if (const auto asked = number("general.alignment")) alignment_ = *asked;
  if (alignment_ == 0 || alignment_ > kMaxAlignment) cursor.fail("alignment " + std::to_string(alignment_));
  check_tensors(aligned(cursor.position(), alignment_));
}

void GgufFile::check_tensors(std::uint64_t payload) {
  const Cursor cursor(file_.bytes(), path_);
  const std::uint64_t size = file_.bytes().size();
  std::set<std::string> seen;
  std::set<std::uint64_t> starts(offsets_.begin(), offsets_.end());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    GgufTensor& tensor = tensors_[i];
    const std::uint64_t begin = offsets_[i];
    if (!seen.insert(tensor.name).second) cursor.fail("tensor " + tensor.name + " is there twice");
    if (payload > size || begin > size - payload) cursor.fail("tensor " + tensor.name + " lies beyond the end");
    const auto next = starts.upper_bound(begin);
    const std::uint64_t room = (next == starts.end() ? size - payload : std::min(*next, size - payload)) - begin;
    if (bytes_of(tensor, cursor) > room) {
      cursor.fail("tensor " + tensor.name + " is truncated or overlaps with another");
    }
    tensor.data = file_.bytes().subspan(payload + begin, room);
  }
}

const GgufTensor* GgufFile::find(const std::string& name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& t) { return t.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

std::optional<std::string> GgufFile::text(const std::string& key) const {
  for (const GgufEntry& entry : entries_) {
    if (entry.key == key && entry.type == kTypeString) return Cursor(entry.value, path_).read_string();
  }
  return std::nullopt;
}

std::optional<std::uint32_t> GgufFile::number(const std::string& key) const {
  for (const GgufEntry& entry : entries_) {
    if (entry.key == key && entry.type == kTypeU32) return Cursor(entry.value, path_).read<std::uint32_t>();
  }
  return std::nullopt;
}

Tensor GgufFile::read(const std::string& name) const {
  const GgufTensor* tensor = find(name);
  if (tensor == nullptr) throw DataError("there is no tensor " + name, path_, "check that this is the right file");
  const bool known = tensor->type == kF32 || tensor->type == kF16 || tensor->type == kBF16;
  if (!known) {
    throw DataError("tensor " + name + " has ggml's type " + std::to_string(tensor->type), path_,
                    "only F32, F16 and BF16 can be read");
  }
  const DType dtype = tensor->type == kF32 ? DType::kF32 : tensor->type == kF16 ? DType::kF16 : DType::kBF16;
  std::vector<std::int64_t> shape;
  for (auto dim = tensor->dims.rbegin(); dim != tensor->dims.rend(); ++dim) {
    shape.push_back(static_cast<std::int64_t>(*dim));
  }
  Tensor out(dtype, std::move(shape));
  std::copy_n(tensor->data.begin(), out.data.size(), out.data.begin());
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
    outgoing.push_back({name, {tensor.shape.rbegin(), tensor.shape.rend()}, kF32, tensor.data});
  }
  AtomicFile out(path);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(out.temporary_path().c_str(), "wbe"), &std::fclose);
  if (file == nullptr) throw_write(path);
  write_all(file.get(), make_header(source, outgoing, texts).bytes(), path);
  for (const Outgoing& tensor : outgoing) {
    write_all(file.get(), tensor.data, path);
    const std::vector<std::byte> padding(aligned(tensor.data.size(), source.alignment()) - tensor.data.size());
    write_all(file.get(), padding, path);
  }
  if (std::fclose(file.release()) != 0) throw_write(path);
  out.commit();
}

}  // namespace oscar
