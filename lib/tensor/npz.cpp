// SPDX-License-Identifier: MIT
#include "tensor/npz.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "tensor/npy.hpp"

namespace oscar {
namespace {

// Records of a zip file (APPNOTE 6.3), little-endian.
constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr std::size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kMaxComment = 65535;
constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint16_t kVersion = 20, kEncrypted = 1;

[[noreturn]] void refuse_npz(const std::string& what, const std::string& where,
                             const std::string& remedy = "write the file again with numpy.savez") {
  throw DataError(what, where, remedy);
}

template <class T>
T at(std::span<const std::byte> bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// As zip, gzip and PNG have it: reflected, polynomial 0x04c11db7.
std::uint32_t crc32(std::span<const std::byte> bytes) {
  static const auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      table[i] = i;
      for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1U ^ (table[i] & 1U ? 0xedb88320U : 0U);
    }
    return table;
  }();
  std::uint32_t crc = ~0U;
  for (const std::byte byte : bytes) crc = crc >> 8U ^ kTable[(crc ^ std::to_integer<std::uint32_t>(byte)) & 255U];
  return ~crc;
}

std::size_t find_end(std::span<const std::byte> file, const std::string& where) {
  for (std::size_t back = kEndBytes; back <= std::min(file.size(), kEndBytes + kMaxComment); ++back) {
    if (at<std::uint32_t>(file, file.size() - back) == kEnd) return file.size() - back;
  }
  refuse_npz("not a zip archive, or truncated", where);
}

/// The payload of the member whose record in the directory stands at `entry`.
std::span<const std::byte> payload(std::span<const std::byte> file, std::size_t entry, const std::string& where) {
  const auto method = at<std::uint16_t>(file, entry + 10);
  if (method != 0)
    refuse_npz("the member is compressed", where, "write the file with numpy.savez, not savez_compressed");
  if ((at<std::uint16_t>(file, entry + 8) & kEncrypted) != 0) refuse_npz("the member is encrypted", where);
  const std::uint64_t size = at<std::uint32_t>(file, entry + 20), begin = at<std::uint32_t>(file, entry + 42);
  if (at<std::uint32_t>(file, entry + 24) != size) refuse_npz("the member has two sizes", where);
  if (begin + kLocalBytes > file.size() || at<std::uint32_t>(file, begin) != kLocal) {
    refuse_npz("the archive is damaged: no member where its directory says", where);
  }
  const std::uint64_t data =
      begin + kLocalBytes + at<std::uint16_t>(file, begin + 26) + at<std::uint16_t>(file, begin + 28);
  if (data > file.size() || size > file.size() - data) refuse_npz("truncated: the member ends beyond the file", where);
  const auto bytes = file.subspan(data, size);
  if (crc32(bytes) != at<std::uint32_t>(file, entry + 16))
    refuse_npz("the member is damaged: its checksum differs", where);
  return bytes;
}

/// An archive under construction.
class Writer {
 public:
  void add(const std::string& name, std::string_view content) {
    if (content.size() + file_.size() > kMaxBytes) {
      refuse_npz("the archive would have more than 4 GB", name, "write another format");
    }
    const auto offset = static_cast<std::uint32_t>(file_.size());
    const std::string common = fields(name, content);
    put(file_, kLocal);
    file_ += common + name;
    file_ += content;
    put(directory_, kCentral);
    put(directory_, kVersion);
    directory_ += common;
    directory_.append(10, '\0');  // no comment, first disk, no attributes
    put(directory_, offset);
    directory_ += name;
    ++count_;
  }
  [[nodiscard]] std::string finish() {
    const auto offset = static_cast<std::uint32_t>(file_.size()), size = static_cast<std::uint32_t>(directory_.size());
    file_ += directory_;
    put(file_, kEnd);
    put(file_, std::uint32_t{0});  // one disk
    put(file_, count_);
    put(file_, count_);
    put(file_, size);
    put(file_, offset);
    put(file_, std::uint16_t{0});
    return std::move(file_);
  }

 private:
  template <class T>
  static void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  /// Version … extra length, which the two records of a member share. The time is zip's first day: the same set gives
  /// the same bytes.
  static std::string fields(const std::string& name, std::string_view content) {
    constexpr std::uint16_t kFirstDay = 1U << 5U | 1U;
    std::string out;
    put(out, kVersion);
    put(out, std::uint32_t{0});  // no flags, stored
    put(out, std::uint16_t{0});
    put(out, kFirstDay);
    put(out, crc32(std::as_bytes(std::span(content))));
    put(out, static_cast<std::uint32_t>(content.size()));
    put(out, static_cast<std::uint32_t>(content.size()));
    put(out, static_cast<std::uint16_t>(name.size()));
    put(out, std::uint16_t{0});
    return out;
  }
  std::string file_, directory_;
  std::uint16_t count_ = 0;
};

}  // namespace

NpzFile::NpzFile(const std::filesystem::path& path) : path_(path.string()), file_(path) {
  const auto file = file_.bytes();
  const std::size_t end = find_end(file, path_);
  const auto count = at<std::uint16_t>(file, end + 10);
  std::uint64_t entry = at<std::uint32_t>(file, end + 16);
  for (std::uint16_t i = 0; i < count; ++i) {
    if (entry + kCentralBytes > end || at<std::uint32_t>(file, entry) != kCentral) {
      refuse_npz("the archive is damaged: its directory breaks off", path_);
    }
    const std::size_t name_bytes = at<std::uint16_t>(file, entry + 28);
    if (entry + kCentralBytes + name_bytes > end) refuse_npz("the archive is damaged: its directory breaks off", path_);
    const std::string name(reinterpret_cast<const char*>(file.data()) + entry + kCentralBytes, name_bytes);
    const bool fresh = members_.emplace(name, payload(file, entry, path_ + ", member " + name)).second;
    if (!fresh) refuse_npz("the archive has the member " + name + " twice", path_);
    entry += kCentralBytes + name_bytes + at<std::uint16_t>(file, entry + 30) + at<std::uint16_t>(file, entry + 32);
  }
}

Tensor NpzFile::read(const std::string& array) const {
  const auto found = members_.find(array + ".npy");
  if (found == members_.end()) refuse_npz("there is no array " + array, path_, "check that this is the right file");
  return parse_npy(found->second, path_ + ", array " + array);
}

void write_npz(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& arrays,
               const std::vector<std::pair<std::string, std::string>>& texts) {
  Writer writer;
  for (const auto& [name, array] : arrays) writer.add(name + ".npy", npy_bytes(array));
  for (const auto& [name, text] : texts) writer.add(name, text);
  write_file(path, writer.finish());
}

}  // namespace oscar
