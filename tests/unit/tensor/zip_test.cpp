// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/errors.hpp"
#include "support/support.hpp"
#include "tensor/pt.hpp"

namespace oscar {
namespace {

/// An archive in memory, of which only what a writer wrote is kept: a member of 4 GB costs no more than its head.
class Sparse {
 public:
  void write(std::string_view bytes) {
    if (bytes.size() < 16U << 20U) parts_.emplace_back(size_, bytes);
    size_ += bytes.size();
  }
  [[nodiscard]] ZipDirectory directory() const {
    return {size_, [this](std::uint64_t offset, std::span<std::byte> to) { read(offset, to); }, "a.zip", "remedy"};
  }

 private:
  void read(std::uint64_t offset, std::span<std::byte> to) const {
    std::memset(to.data(), 0, to.size());
    for (const auto& [begin, bytes] : parts_) {
      const std::uint64_t first = std::max(offset, begin), end = std::min(offset + to.size(), begin + bytes.size());
      if (first < end) std::memcpy(&to[first - offset], &bytes[first - begin], end - first);
    }
  }
  std::vector<std::pair<std::uint64_t, std::string>> parts_;
  std::uint64_t size_ = 0;
};

/// Zeros that take no memory, since nobody writes them.
class Zeros {
 public:
  explicit Zeros(std::size_t size)
      : size_(size), data_(::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    REQUIRE(data_ != MAP_FAILED);
  }
  ~Zeros() { ::munmap(data_, size_); }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  [[nodiscard]] std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  std::size_t size_;
  void* data_;
};

constexpr std::uint64_t kLarge = (std::uint64_t{1} << 32U) + 5;

}  // namespace

TEST_CASE("members come back, aligned as they were asked to be") {
  Sparse archive;
  ZipWriter writer([&](std::string_view bytes) { archive.write(bytes); }, 64);
  const std::vector<std::string> names{"a", "folder/b", "c.bin"};
  for (const std::string& name : names) writer.add(name, std::string(37, name.back()));
  writer.finish();

  const ZipDirectory directory = archive.directory();
  CHECK(directory.names() == std::vector<std::string>{"a", "c.bin", "folder/b"});
  for (const std::string& name : names) {
    const ZipMember member = directory.find(name);
    CHECK(member.offset % 64 == 0);
    const std::string content(37, name.back());
    CHECK_NOTHROW(directory.check(name, member, std::as_bytes(std::span(content))));
    CHECK_ERROR(directory.check(name, member, std::as_bytes(std::span(content).first(36))), DataError, "checksum");
  }
  CHECK_ERROR((void)directory.find("d"), DataError, "no member d");
}

TEST_CASE("a checksum of zero says that the writer took none, as torch.save can be told to") {
  Sparse archive;
  ZipWriter writer([&](std::string_view bytes) { archive.write(bytes); }, 64);
  const std::string content(37, 'a');
  writer.add("a", content);
  writer.finish();

  const ZipDirectory directory = archive.directory();
  ZipMember member = directory.find("a");
  const auto bytes = std::as_bytes(std::span(content));
  member.checksum = 0;
  CHECK_NOTHROW(directory.check("a", member, bytes));
  CHECK_ERROR(directory.check("a", member, bytes.first(36)), DataError, "checksum");
  member.checksum = 1;
  CHECK_ERROR(directory.check("a", member, bytes), DataError, "checksum");
}

TEST_CASE("archives and members of more than 4 GB have zip64 records") {
  const Zeros zeros(kLarge);
  Sparse archive;
  ZipWriter writer([&](std::string_view bytes) { archive.write(bytes); }, 64);
  writer.add("large", zeros.bytes());
  writer.add("behind", "content");
  writer.finish();

  const ZipDirectory directory = archive.directory();
  CHECK(directory.find("large").size == kLarge);
  const ZipMember behind = directory.find("behind");
  CHECK(behind.offset > kLarge);
  CHECK(behind.size == 7);
}

TEST_CASE("more members than 16 bits can count") {
  Sparse archive;
  ZipWriter writer([&](std::string_view bytes) { archive.write(bytes); }, 1);
  for (int i = 0; i < 66000; ++i) writer.add(std::to_string(i), "");
  writer.finish();
  CHECK(archive.directory().names().size() == 66000);
}

}  // namespace oscar
