// SPDX-License-Identifier: MIT
#include "tensor/gguf.hpp"

#include <doctest/doctest.h>

#include "base/files.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

/// A GGUF file by hand.
struct Builder {
  std::string bytes = "GGUF";

  template <class T>
  Builder& add(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Builder& text(const std::string& value) {
    add(std::uint64_t{value.size()});
    bytes += value;
    return *this;
  }
  Builder& header(std::uint64_t tensors, std::uint64_t entries) {
    return add(std::uint32_t{3}).add(tensors).add(entries);
  }
  /// A float vector of `size` values.
  Builder& vector(const std::string& name, std::uint64_t size, std::uint64_t offset, std::uint32_t type = 0) {
    return text(name).add(std::uint32_t{1}).add(size).add(type).add(offset);
  }
  Builder& pad() {
    bytes.resize((bytes.size() + 31) / 32 * 32, '\0');
    return *this;
  }
};

std::string small_file() {
  Builder file;
  file.header(2, 2);
  file.text("general.architecture").add(std::uint32_t{8}).text("toy");
  file.text("toy.block_count").add(std::uint32_t{4}).add(std::uint32_t{7});
  file.vector("a", 2, 0).vector("b", 3, 32).pad();
  file.add(1.0F).add(2.0F).pad().add(3.0F).add(4.0F).add(5.0F).pad();
  return file.bytes;
}

}  // namespace

TEST_CASE("metadata and tensors are read, and a copy keeps what it does not replace") {
  const test::TemporaryFolder folder;
  write_file(folder / "x.gguf", small_file());
  const GgufFile file(folder / "x.gguf");
  CHECK(file.text("general.architecture") == "toy");
  CHECK(file.number("toy.block_count") == 7U);
  CHECK_FALSE(file.text("toy.block_count"));
  CHECK(file.read("b").to_doubles() == std::vector<double>{3, 4, 5});
  CHECK_ERROR(file.read("c"), DataError, "no tensor c");

  const float numbers[] = {8, 9, 10, 11, 12, 13};
  write_gguf_copy(folder / "y.gguf", file, {{"c", Tensor::from({2, 3}, std::span<const float>(numbers))}},
                  {{"note", "hello"}, {"general.architecture", "other"}});
  const GgufFile copy(folder / "y.gguf");
  CHECK(copy.tensors().size() == 3);
  CHECK(copy.entries().size() == 3);
  CHECK(copy.read("a").data == file.read("a").data);
  CHECK(copy.read("c").shape == std::vector<std::int64_t>{2, 3});
  CHECK(copy.find("c")->dims == std::vector<std::uint64_t>{3, 2});
  CHECK(copy.text("general.architecture") == "other");
}

TEST_CASE("a file that is cut anywhere is refused") {
  const test::TemporaryFolder folder;
  const std::string good = small_file();
  for (std::size_t size = 0; size + 20 < good.size(); ++size) {  // the last 20 bytes are padding
    write_file(folder / "x.gguf", good.substr(0, size));
    CHECK_THROWS_AS(GgufFile(folder / "x.gguf"), DataError);
  }
}

TEST_CASE("forged counts, sizes and names are refused at once") {
  const test::TemporaryFolder folder;
  const auto refused = [&](Builder file, const char* why) {
    write_file(folder / "x.gguf", file.bytes);
    CHECK_ERROR(GgufFile(folder / "x.gguf"), DataError, why);
  };
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 62U;
  refused(Builder().add(std::uint32_t{1}), "version 1");
  refused(Builder().header(kHuge, 0), "ends too early");
  refused(Builder().header(0, kHuge), "ends too early");
  refused(Builder().header(0, 1).add(kHuge), "ends too early");
  refused(Builder().header(0, 1).text("k").add(std::uint32_t{9}).add(std::uint32_t{0}).add(kHuge), "ends too early");
  refused(Builder().header(0, 1).text("k").add(std::uint32_t{9}).add(std::uint32_t{9}).add(kHuge), "array of arrays");
  refused(Builder().header(0, 1).text("k").add(std::uint32_t{77}), "unknown metadata type");
  refused(Builder().header(1, 0).vector("a", kHuge, 0).pad(), "does not fit its type");
  refused(Builder().header(1, 0).vector("a", 8, 0).pad(), "truncated or overlaps");
  refused(Builder().header(1, 0).vector("a", 1, kHuge).pad(), "beyond the end");
  refused(Builder().header(1, 0).vector("a", 33, 0, 8).pad(), "does not fit its type");
  // 16 rows of two values are one block's number of values, but rows are no whole blocks.
  refused(Builder()
              .header(1, 0)
              .text("a")
              .add(std::uint32_t{2})
              .add(std::uint64_t{2})
              .add(std::uint64_t{16})
              .add(std::uint32_t{8})
              .add(std::uint64_t{0})
              .pad(),
          "does not fit its type");
  refused(Builder().header(1, 0).vector("a", 0, 0).pad(), "has a dimension of 0");
  refused(Builder()
              .header(0, 2)
              .text("k")
              .add(std::uint32_t{4})
              .add(std::uint32_t{1})
              .text("k")
              .add(std::uint32_t{4})
              .add(std::uint32_t{2}),
          "metadata k is there twice");
  refused(Builder().header(0, 1).text("general.alignment").add(std::uint32_t{10}).add(std::uint64_t{32}),
          "another type");
  refused(Builder().header(2, 0).vector("a", 1, 0).vector("b", 1, 0).pad().add(1.0F), "b overlaps with another");
  refused(Builder().header(2, 0).vector("a", 1, 0).vector("a", 1, 32).pad().add(1.0F), "twice");
  refused(Builder().header(2, 0).vector("a", 2, 0).vector("b", 1, 4).pad().add(1.0F).add(2.0F), "overlaps");
  refused(Builder().header(0, 1).text("general.alignment").add(std::uint32_t{4}).add(std::uint32_t{0}), "alignment 0");
}

}  // namespace oscar
