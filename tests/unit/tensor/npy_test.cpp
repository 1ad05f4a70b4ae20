// SPDX-License-Identifier: MIT
#include "tensor/npy.hpp"

#include <doctest/doctest.h>

#include "base/files.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

using Shape = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("files that numpy wrote are read, whatever their version") {
  const Tensor floats = read_npy(test::data("tensor/f4_2x3.npy"));
  CHECK(floats.shape == Shape{2, 3});
  CHECK(floats.to_doubles() == std::vector<double>{0.5, -1, 2, 3, 4, static_cast<double>(1e-3F)});

  const Tensor integers = read_npy(test::data("tensor/i8_vector.npy"));
  CHECK(integers.shape == Shape{3});
  CHECK(integers.to_int64() == std::vector<std::int64_t>{1, -2, std::int64_t{1} << 40});

  const Tensor half = read_npy(test::data("tensor/f2_version2.npy"));
  CHECK(half.dtype == DType::kF16);
  CHECK(half.to_doubles() == std::vector<double>{1.5});
}

TEST_CASE("arrays that cannot be used are refused with the reason") {
  CHECK_ERROR(read_npy("/nowhere.npy"), DataError, "no such file");
  CHECK_ERROR(read_npy(test::data("tensor/fortran.npy")), DataError, "Fortran order");
  CHECK_ERROR(read_npy(test::data("tensor/big_endian.npy")), DataError, "big-endian");
  CHECK_ERROR(read_npy(test::data("tensor/python.safetensors")), DataError, "not a .npy file");
}

TEST_CASE("every truncation of a .npy file is an error") {
  const test::TemporaryFolder folder;
  const std::string whole = read_text(test::data("tensor/f4_2x3.npy"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_file(folder / "cut.npy", whole.substr(0, size));
    CHECK_THROWS_AS((void)read_npy(folder / "cut.npy"), DataError);
  }
}

TEST_CASE("a .npy header that lies about its shape or type is an error") {
  const test::TemporaryFolder folder;
  const std::string whole = read_text(test::data("tensor/f4_2x3.npy"));
  const auto with = [&](const std::string& old, const std::string& replacement) {
    std::string text = whole;
    write_file(folder / "bad.npy", text.replace(text.find(old), old.size(), replacement));
    return folder / "bad.npy";
  };
  CHECK_ERROR(read_npy(with("(2, 3)", "(9, 3)")), DataError, "truncated");
  CHECK_ERROR(read_npy(with("(2, 3), }", "(2147483648, 2147483648), }")), DataError, "truncated");
  CHECK_ERROR(read_npy(with("(2, 3), }", "(9147483648, 4294967296), }")), DataError, "impossible tensor shape");
  CHECK_ERROR(read_npy(with("(2, 3)", "(-2,3)")), DataError, "proper shape");
  CHECK_ERROR(read_npy(with("'<f4'", "'<c8'")), DataError, "unsupported element type <c8");
  CHECK_ERROR(read_npy(with("'<f4'", "[('a'")), DataError, "unsupported element type");
  CHECK_ERROR(read_npy(with("'descr'", "'other'")), DataError, "no member descr");
  CHECK_ERROR(read_npy(with("\x01", "\x09")), DataError, "unknown .npy version 9");
}

}  // namespace oscar
