// SPDX-License-Identifier: MIT
// Zip archives (PKWARE's APPNOTE 6.3) whose members are stored as they are, as .pt files have them; zip64
// records where an archive or a member has 4 GB or more. Non-goals: compression, encryption, several disks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace oscar {

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

}  // namespace oscar
