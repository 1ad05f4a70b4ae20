// SPDX-License-Identifier: MIT
#include "tensor/safetensors.hpp"

#include <doctest/doctest.h>

#include "base/files.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

/// A file with this header and `payload` zero bytes.
fs::path file_with(const test::TemporaryFolder& folder, const std::string& header, std::size_t payload) {
  const std::uint64_t length = header.size();
  std::string content(reinterpret_cast<const char*>(&length), sizeof length);
  content += header + std::string(payload, '\0');
  write_file(folder / "x.safetensors", content);
  return folder / "x.safetensors";
}

}  // namespace

TEST_CASE("a file that Python's safetensors wrote is read") {
  const SafetensorsFile file(test::data("tensor/python.safetensors"));
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  const Tensor a = file.at("a").copy();
  CHECK(a.dtype == DType::kBF16);
  CHECK(a.shape == std::vector<std::int64_t>{1, 2});
  CHECK(a.to_doubles() == std::vector<double>{1.5, -2.25});
  CHECK(file.at("b").copy().to_int64() == std::vector<std::int64_t>{7, 8, 9});
  CHECK(file.at("empty").copy().shape == std::vector<std::int64_t>{0, 3});
}

TEST_CASE("an element type that is not supported is an error only for who asks for it") {
  const test::TemporaryFolder folder;
  std::string bytes = read_text(test::data("tensor/python.safetensors"));
  bytes.replace(bytes.find("F8_E4M3"), 7, "F8_E9M9");
  write_file(folder / "other.safetensors", bytes);
  const SafetensorsFile file(folder / "other.safetensors");
  CHECK(file.tensors().size() == 3);
  CHECK_ERROR(file.at("eight"), DataError, "F8_E9M9");
  CHECK_ERROR(file.at("absent"), DataError, "there is no tensor absent");
}

TEST_CASE("safetensors survive writing and reading") {
  const test::TemporaryFolder folder;
  const Tensor floats = Tensor::from({2, 1}, std::vector<float>{1, 2});
  const Tensor doubles = Tensor::from({3}, std::vector<double>{3, 4, 5});
  write_safetensors(folder / "x.safetensors", {{"z", floats}, {"a", doubles}}, {{"key", "value \"quoted\""}});

  const SafetensorsFile file(folder / "x.safetensors");

  CHECK(file.metadata().at("key") == "value \"quoted\"");
  CHECK(file.at("z").copy().data == floats.data);
  CHECK(file.at("a").copy().data == doubles.data);
}

TEST_CASE("payloads are written aligned, whatever the length of the header") {
  const test::TemporaryFolder folder;
  for (const char* name : {"a", "ab", "abc"}) {
    write_safetensors(folder / "x.safetensors", {{name, Tensor(DType::kF64, {1})}}, {});
    const SafetensorsFile file(folder / "x.safetensors");
    CHECK(reinterpret_cast<std::uintptr_t>(file.at(name).data.data()) % 8 == 0);
  }
}

TEST_CASE("every truncation of a safetensors file is an error") {
  const test::TemporaryFolder folder;
  const std::string whole = read_text(test::data("tensor/python.safetensors"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_file(folder / "cut.safetensors", whole.substr(0, size));
    CHECK_THROWS_AS(SafetensorsFile(folder / "cut.safetensors"), DataError);
  }
  write_file(folder / "long.safetensors", whole + "x");
  CHECK_ERROR(SafetensorsFile(folder / "long.safetensors"), DataError, "bytes of payload");
}

TEST_CASE("safetensors headers that lie are refused") {
  const test::TemporaryFolder folder;
  const auto refused = [&](const std::string& header, const char* reason) {
    CHECK_ERROR(SafetensorsFile(file_with(folder, header, 8)), DataError, reason);
  };
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return R"({"x":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  refused("[1]", "not a JSON object");
  refused("{", "not valid JSON");
  refused(R"({"x":1})", "lacks a proper dtype");
  refused(entry("[-2]", "[0,8]"), "lacks a proper dtype");
  refused(entry("[2]", "[0,8.5]"), "lacks a proper dtype");
  refused(entry("[18446744073709551615]", "[0,8]"), "lacks a proper dtype");
  refused(entry("[3]", "[0,8]"), "does not fit 8 bytes");
  refused(entry("[4611686018427387906]", "[0,8]"), "does not fit 8 bytes");
  refused(entry("[4611686018427387906,4]", "[0,8]"), "impossible tensor shape");
  refused(entry("[2]", "[8,0]"), "outside the file");
  refused(entry("[2]", "[4,12]"), "outside the file");
  refused(entry("[1]", "[4,8]"), "overlap or leave holes");
  refused(entry("[1]", "[0,4]"), "bytes of payload");
  write_file(folder / "x", std::string(8, '\xff') + "{}");
  CHECK_ERROR(SafetensorsFile(folder / "x"), DataError, "header length");
  write_file(folder / "x", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n");
  CHECK_ERROR(SafetensorsFile(folder / "x"), DataError, "a pointer of Git LFS");
}

}  // namespace oscar
