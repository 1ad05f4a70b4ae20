// SPDX-License-Identifier: MIT
#include "tensor/npz.hpp"

#include <doctest/doctest.h>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

const Tensor kNumbers = Tensor::from({2, 2}, std::span<const double>(std::initializer_list<double>{1, 2, 3, 4}));

std::string archive(const fs::path& path) {
  write_npz(path, {{"a", kNumbers}, {"b.c", kNumbers}}, {{"notes.txt", "hello"}});
  return read_text(path);
}

}  // namespace

TEST_CASE("arrays and texts come back, and the same content gives the same bytes") {
  const test::TemporaryFolder folder;
  const std::string bytes = archive(folder / "x.npz");
  const NpzFile file(folder / "x.npz");
  CHECK(file.members().size() == 3);
  CHECK(file.has("b.c"));
  CHECK_FALSE(file.has("notes.txt"));
  CHECK(file.read("a").data == kNumbers.data);
  const auto text = file.members().at("notes.txt");
  CHECK(std::string(reinterpret_cast<const char*>(text.data()), text.size()) == "hello");
  CHECK_ERROR(file.read("d"), DataError, "no array d");
  CHECK(archive(folder / "y.npz") == bytes);
}

TEST_CASE("damaged archives are refused, wherever they are cut or changed") {
  const test::TemporaryFolder folder;
  const fs::path path = folder / "x.npz";
  const std::string good = archive(path);
  const auto read_all = [&] {
    const NpzFile file(path);
    for (const auto& [name, bytes] : file.members()) {
      if (name.ends_with(".npy")) (void)file.read(name.substr(0, name.size() - 4));
    }
  };
  for (std::size_t size = 0; size < good.size(); ++size) {
    write_file(path, good.substr(0, size));
    CHECK_THROWS_AS(read_all(), DataError);
  }
  int refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x5a);
    write_file(path, bad);
    try {
      read_all();  // a date or an attribute may be anything
    } catch (const DataError&) {
      ++refused;
    }
  }
  CHECK(refused > static_cast<int>(good.size()) / 2);
}

TEST_CASE("a compressed member, a member twice, and sizes that lie are named") {
  const test::TemporaryFolder folder;
  const fs::path path = folder / "x.npz";
  const std::string good = archive(path);
  const std::size_t directory = good.find("PK\x01\x02");
  const auto with = [&](std::size_t offset, char value) {
    std::string bad = good;
    bad[directory + offset] = value;
    write_file(path, bad);
  };
  with(10, 8);
  CHECK_ERROR(NpzFile(path), DataError, "compressed");
  with(24, 1);
  CHECK_ERROR(NpzFile(path), DataError, "two sizes");
  with(45, 0x7f);
  CHECK_ERROR(NpzFile(path), DataError, "no member where");
  write_npz(path, {{"a", kNumbers}, {"a", kNumbers}}, {});
  CHECK_ERROR(NpzFile(path), DataError, "a.npy twice");
}

}  // namespace oscar
