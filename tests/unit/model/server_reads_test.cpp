// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <array>
#include <cstring>

#include "model/weights/checkpoint.hpp"

namespace oscar {
namespace {

constexpr std::size_t kRowBytes = 4096, kRows = 40000;

/// Bytes that say which row they are of, at addresses that are never touched.
struct FakeMatrix {
  FakeMatrix() : matrix{DType::kF32, {kRows, kRowBytes / 4}, {base(), kRows * kRowBytes}} {}
  static const std::byte* base() { return reinterpret_cast<const std::byte*>(std::uintptr_t{1} << 40); }

  RemoteRows::Read read() {
    return [this](std::span<const RemoteRows::Part> parts) {
      std::size_t total = 0;
      for (const auto& [from, to] : parts) {
        const auto offset = static_cast<std::size_t>(from.data() - base());
        CHECK(offset % kRowBytes == 0);
        for (std::size_t at = 0; at < to.size(); at += kRowBytes) {
          const auto row = static_cast<std::int32_t>((offset + at) / kRowBytes);
          std::memcpy(&to[at], &row, sizeof row);
        }
        total += to.size();
        ++requests;
      }
      bytes += total;
      most = std::max(most, total);
    };
  }

  TensorRef matrix;
  std::size_t requests = 0, bytes = 0, most = 0;
};

void check(RemoteRows& rows, FakeMatrix& matrix, const std::vector<std::int32_t>& wanted) {
  std::vector<std::byte> out(wanted.size() * kRowBytes);
  rows.read(matrix.matrix, wanted, 0, kRowBytes, out.data(), matrix.read());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::int32_t row = -1;
    std::memcpy(&row, &out[i * kRowBytes], sizeof row);
    CHECK(row == wanted[i]);
  }
}

}  // namespace

TEST_CASE("rows at a server: neighbours together, each once, in the order asked for") {
  FakeMatrix matrix;
  RemoteRows rows;
  check(rows, matrix, {7, 39999, 5, 7, 20000});
  CHECK(matrix.requests == 3);
  CHECK(matrix.bytes == 5 * kRowBytes);
  check(rows, matrix, {20000, 7});
  CHECK(matrix.requests == 3);
  check(rows, matrix, {7, 39998, 0});
  CHECK(matrix.requests == 5);
}

TEST_CASE("many rows at a server come in parts of limited size") {
  FakeMatrix matrix;
  RemoteRows rows;
  std::vector<std::int32_t> all;
  for (std::int32_t row = kRows - 1; row >= 0; row -= 2) all.push_back(row);
  check(rows, matrix, all);
  CHECK(matrix.most <= (std::size_t{64} << 20));
  CHECK(matrix.requests >= 2);
  CHECK(matrix.bytes <= kRows * kRowBytes);
}

TEST_CASE("what was read is kept as long as there is room, and only when it is allowed") {
  const std::array<std::byte, 100> names{};
  const std::vector<std::byte> bytes(60, std::byte{7});
  const std::span<const std::byte> all(names);
  std::vector<std::byte> out(60);
  KeptBytes kept;
  kept.add(all.first(60), bytes.data());
  CHECK_FALSE(kept.copy(all.first(60), out.data()));
  kept.allow(100);
  kept.add(all.first(60), bytes.data());
  CHECK(kept.copy(all.first(60), out.data()));
  CHECK(out == bytes);
  CHECK_FALSE(kept.copy(all.first(59), out.data()));
  kept.add(all.subspan(40), bytes.data());  // 120 bytes would be held
  CHECK_FALSE(kept.copy(all.subspan(40), out.data()));
  kept.add(all.subspan(60), bytes.data());
  CHECK(kept.copy(all.subspan(60), out.data()));
}

}  // namespace oscar
