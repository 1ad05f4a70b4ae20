// SPDX-License-Identifier: MIT
// PyTorch archives (torch.save, zip format), read against an allow-list and written so that
// torch.load(weights_only=True) takes them: a zip archive of a pickle and of one member for the
// elements of each tensor. Nothing in an archive is ever executed: only dicts, lists, tuples, numbers, strings, None
// and tensors are built, and any other global is an error that names it. Non-goals: the legacy (non-zip) format,
// compressed members, big-endian numbers, sparse or quantised tensors, those that are negated or conjugated as they are
// read; views with strides are made contiguous.
//
// Zip archives (PKWARE's APPNOTE 6.3) whose members are stored as they are, as .pt files have them; zip64
// records where an archive or a member has 4 GB or more. Non-goals: compression, encryption, several disks.
//
// The pickles that torch.save writes (protocol 2): dicts, lists, tuples, numbers, strings, None and tensors. A stack
// machine builds these and knows nothing else: nothing is executed, any other global is refused by its name, and bytes
// that no torch.save wrote end in an error, never in more memory than the file accounts for. (libtorch has one too,
// which trusts the bytes: some make it read beyond its stack, or end the process.) What is written says the same in the
// opcodes that torch.save has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tensor/tensor.hpp"

namespace oscar {

struct PtValue;
/// Lists and tuples.
using PtList = std::vector<PtValue>;
/// A dictionary in file order; keys are strings or integers.
struct PtItem;
using PtDict = std::vector<PtItem>;

struct PtValue {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Tensor, TensorLocation, PtList, PtDict> value;

  /// The member of a dict under a string key, or under an integer key (which also matches its decimal string); null if
  /// absent or if this is not a dict.
  [[nodiscard]] const PtValue* find(const std::string& key) const;
  [[nodiscard]] const PtValue* find(std::int64_t key) const;
  /// Two values are equal if they are of the same types and hold the same values in the same order.
  [[nodiscard]] bool operator==(const PtValue& other) const;
  template <class T>
  [[nodiscard]] const T* get_if() const {
    return std::get_if<T>(&value);
  }
};

struct PtItem {
  PtValue key, value;
  [[nodiscard]] bool operator==(const PtItem&) const = default;
};

inline bool PtValue::operator==(const PtValue& other) const { return value == other.value; }

/// The member of a dict, which may be null, if it has this type; else null.
template <class T>
[[nodiscard]] const T* member_of(const PtValue* dict, const auto& key) {
  const PtValue* const value = dict == nullptr ? nullptr : dict->find(key);
  return value == nullptr ? nullptr : value->get_if<T>();
}

/// Reads a whole archive. Throws DataError: missing, truncated, damaged, not an archive, a forbidden global.
[[nodiscard]] PtValue read_pt(const std::filesystem::path& path);
/// Reads an archive that holds one bare tensor. Throws DataError if it holds something else.
[[nodiscard]] Tensor read_pt_tensor(const std::filesystem::path& path);
/// Writes atomically.
void write_pt(const std::filesystem::path& path, const PtValue& value);

/// Reads an archive without the elements of its tensors: in the place of each is where it lies. Throws DataError as
/// read_pt does, but not for damaged elements, and for a tensor that is not contiguous.
[[nodiscard]] PtValue locate_pt(const std::filesystem::path& path);
/// Tells where the one tensor of an archive lies, without reading the payload. Throws DataError as read_pt_tensor does,
/// and for a tensor that is not contiguous.
[[nodiscard]] TensorLocation locate_pt_tensor(const std::filesystem::path& path);

/// Where the bytes of a member lie in the archive.
struct ZipMember {
  std::uint64_t offset = 0, size = 0;
  std::uint32_t checksum = 0;  // CRC-32
};

/// The directory of an archive. Nothing of a member is read before it is asked for.
class ZipDirectory {
 public:
  /// Copies to.size() bytes from `offset` of the archive on, which lie inside it.
  using Read = std::function<void(std::uint64_t offset, std::span<std::byte> to)>;

  /// size: bytes of the archive. where, remedy: for messages. Throws DataError for what is no zip archive, is
  /// truncated, or names a member twice.
  ZipDirectory(std::uint64_t size, Read read, std::string where, std::string remedy);

  [[nodiscard]] bool has(const std::string& name) const { return entries_.contains(name); }
  /// All names, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Throws DataError for a member that is missing, compressed or encrypted, or lies outside the archive.
  [[nodiscard]] ZipMember find(const std::string& name) const;
  /// Throws DataError if these are not the bytes that were put into the archive.
  void check(const std::string& name, const ZipMember& member, std::span<const std::byte> bytes) const;

 private:
  struct Entry {
    std::uint64_t header = 0, stored = 0, size = 0;
    std::uint32_t checksum = 0;
    std::uint16_t flags = 0, method = 0;
  };
  [[nodiscard]] std::string bytes(std::uint64_t offset, std::uint64_t count) const;
  void read_directory(std::uint64_t end);
  void add_entries(const std::string& directory, std::uint64_t count);
  [[noreturn]] void refuse(const std::string& what) const;

  std::uint64_t size_;
  Read read_;
  std::string where_, remedy_;
  std::map<std::string, Entry> entries_;
};

/// An archive under construction; the same members give the same bytes. The day of all members is zip's first.
class ZipWriter {
 public:
  /// write: takes the archive piece by piece, in order. alignment: of the first byte of each member.
  ZipWriter(std::function<void(std::string_view)> write, std::uint64_t alignment);
  void add(const std::string& name, std::string_view content);
  /// Writes the directory: the archive is whole.
  void finish();

 private:
  void put(std::string_view bytes);

  std::function<void(std::string_view)> write_;
  std::uint64_t alignment_, position_ = 0, count_ = 0;
  std::string directory_;
};

/// The names that pickles of torch.save have for the types of elements.
inline constexpr std::array<std::pair<std::string_view, DType>, 10> kStorages{{{"DoubleStorage", DType::kF64},
                                                                               {"FloatStorage", DType::kF32},
                                                                               {"HalfStorage", DType::kF16},
                                                                               {"BFloat16Storage", DType::kBF16},
                                                                               {"LongStorage", DType::kI64},
                                                                               {"IntStorage", DType::kI32},
                                                                               {"ShortStorage", DType::kI16},
                                                                               {"CharStorage", DType::kI8},
                                                                               {"ByteStorage", DType::kU8},
                                                                               {"BoolStorage", DType::kBool}}};

/// A tensor as a pickle tells it: a view of a record of the archive, checked before it is read.
struct PickledTensor {
  DType dtype = DType::kF32;
  std::string record;
  std::int64_t offset = 0;                     // in elements
  std::vector<std::int64_t> shape, strides{};  // as many strides as sizes, in elements

  [[nodiscard]] bool is_contiguous() const;
};

/// Throws DataError unless all elements lie inside a record of so many bytes. where: the file.
void require_inside(const PickledTensor& view, std::uint64_t record_bytes, const std::string& where);

/// The elements of a view that lies inside `record`, without gaps.
[[nodiscard]] Tensor gather(const PickledTensor& view, std::span<const std::byte> record);

/// The value of a pickle; `make` is called for every tensor in it. where: the file. Throws DataError, as `make` may.
[[nodiscard]] PtValue read_pickle(std::span<const char> pickle,
                                  const std::function<PtValue(const PickledTensor&)>& make, const std::string& where);

/// The pickle of a value. Its tensors come into `tensors`; the elements of the i-th are the record "i".
[[nodiscard]] std::string write_pickle(const PtValue& value, std::vector<const Tensor*>& tensors);

}  // namespace oscar
