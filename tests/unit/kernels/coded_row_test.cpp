// SPDX-License-Identifier: MIT
// Rows of the coded cache: bytes by hand, bytes and values of an independent implementation, and what attention reads.
#include "kernels/reference/coded_row.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "conformance/samples.hpp"
#include "kernels/reference/attention.hpp"
#include "kernels/reference/coded_operands.hpp"
#include "kernels/reference/row_codec.hpp"
#include "support/support.hpp"
#include "tensor/safetensors.hpp"

namespace oscar::reference {
namespace {

using test::gaussian_floats;
using Bytes = std::vector<std::uint8_t>;

std::vector<float> floats(const Tensor& tensor) {
  const std::vector<double> values = tensor.to_doubles();
  return {values.begin(), values.end()};
}

/// All channels with the same number of levels, steps and sigmas 1.
CodedFormat uniform(std::size_t dim, int levels) {
  return {std::vector<int>(dim, levels), std::vector<float>(dim, 1.0F), std::vector<float>(dim, 1.0F)};
}

Bytes encoded(const CodedFormat& format, std::span<const float> row) {
  const CodedRows rows(format);
  Bytes bytes(rows.bytes());
  rows.write(row, bytes.data());
  return bytes;
}

std::vector<float> decoded(const CodedFormat& format, std::span<const std::uint8_t> bytes) {
  std::vector<float> row(format.levels.size());
  CodedRows(format).read(bytes.data(), row);
  return row;
}

/// Packs rows (n, d) one after the other.
Bytes packed(const CodedFormat& format, std::span<const float> rows) {
  const std::size_t dim = format.levels.size();
  Bytes all;
  for (std::size_t at = 0; at < rows.size(); at += dim) {
    const Bytes row = encoded(format, rows.subspan(at, dim));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

}  // namespace

TEST_CASE("bits of a row lie where oscar/coded_attention.h says") {
  // Scale byte 128 is scale 1, which rows have whose root mean square is sigma.
  const std::vector<float> row{-3.5F, -2.5F, -1.5F, -0.5F, 0.5F, 1.5F, 2.5F, 3.5F};  // codes 0 … 7 of 8 levels
  CodedFormat format = uniform(8, 8);
  format.sigma.assign(8, std::sqrt(5.25F));
  const Bytes one = encoded(format, row);  // strings of one byte: a piece of 8 bytes, then the scales
  CHECK(one == Bytes{0, 1, 2, 3, 4, 5, 6, 7, 0, 128});
  CHECK(decoded(format, one) == row);

  // Six blocks of 3 bits: strings of 3 bytes. Blocks 0, 1 and 2 begin the bytes, 3, 4 and 5 follow them. Byte 0 is the
  // piece of 8 bytes, bytes 1 and 2 are the words of the piece of 16, which comes first.
  std::vector<float> all;
  for (int block = 0; block < 6; ++block)
    for (int j = 0; j < 8; ++j) all.push_back(row[static_cast<std::size_t>((block + j) % 8)]);
  CodedFormat wide = uniform(48, 8);
  wide.sigma.assign(48, std::sqrt(5.25F));
  Bytes expected;
  const auto byte = [](int lower, int upper, int j) {
    return static_cast<std::uint8_t>((lower + j) % 8 | (upper + j) % 8 << 3);
  };
  for (int j = 0; j < 8; ++j) expected.insert(expected.end(), {byte(1, 4, j), byte(2, 5, j)});
  for (int j = 0; j < 8; ++j) expected.push_back(byte(0, 3, j));
  expected.insert(expected.end(), {0, 128});
  CHECK(encoded(wide, all) == expected);
  CHECK(decoded(wide, expected) == all);

  // Three blocks of 5 bits have two bytes: the third is cut, and its low bits fill the first byte.
  const std::vector<CodedPart> parts = parts_of(Bytes{5, 5, 5});
  REQUIRE(parts.size() == 4);
  CHECK(std::tie(parts[2].block, parts[2].byte, parts[2].position, parts[2].width, parts[2].code_bit) ==
        std::tuple(2, 0, 5, 3, 0));
  CHECK(std::tie(parts[3].block, parts[3].byte, parts[3].position, parts[3].width, parts[3].code_bit) ==
        std::tuple(2, 1, 5, 2, 3));
}

TEST_CASE("operands take two parts of a class, in pairs") {
  const auto count = [](const Bytes& bits) {
    return std::pair{count_operands(bits, true), count_operands(bits, false)};
  };
  CHECK(count(Bytes(16, 2)) == std::pair{8, 8});
  CHECK(count(Bytes(8, 4)) == std::pair{4, 4});
  CHECK(count({4, 2, 2}) == std::pair{4, 4});     // one byte: no part has a partner
  CHECK(count({8, 8, 4, 4}) == std::pair{4, 4});  // one of three operands has no partner
  CHECK(count({5, 5, 5}) == std::pair{2, 2});     // of keys one in lower and one in upper halves of bytes
  CHECK(count({4, 4, 4, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1}) == std::pair{8, 10});
  CHECK(count(Bytes(16, 0)) == std::pair{0, 0});
}

TEST_CASE("a page is rows of all heads, sides and tokens, and nothing else") {
  constexpr int kTokens = 3;
  const std::vector<std::vector<int>> levels{{64, 4, 2}, {16, 16, 1}, {8, 8, 8}, {1, 1, 1}};  // of two heads' sides
  std::vector<CodedFormat> formats;
  for (const auto& own : levels) {
    formats.push_back(uniform(24, 1));
    for (std::size_t i = 0; i < 24; ++i) formats.back().levels[i] = own[i / 8];
  }
  std::vector<CodedRows> sides;
  std::int64_t token_bytes = 0;
  for (std::size_t head = 0; head < 2; ++head) {
    const int keys = static_cast<int>(CodedRows(formats[2 * head]).bytes() - 2) / 8;
    const int values = static_cast<int>(CodedRows(formats[2 * head + 1]).bytes() - 2) / 8;
    const auto planes = planes_of_head(token_bytes, keys, values);
    sides.emplace_back(formats[2 * head], planes[0]), sides.emplace_back(formats[2 * head + 1], planes[1]);
    token_bytes += head_bytes(keys, values);
  }
  const std::vector<float> rows = gaussian_floats(4 * kTokens * 24, 5);
  const auto row = [&](std::size_t side, int token) {
    return std::span(rows).subspan((side * kTokens + static_cast<std::size_t>(token)) * 24, 24);
  };
  const auto page = [&](std::uint8_t before) {
    Bytes bytes(static_cast<std::size_t>(kTokens * token_bytes), before);
    for (std::size_t side = 0; side < 4; ++side)
      for (int token = 0; token < kTokens; ++token) sides[side].write(row(side, token), bytes.data(), kTokens, token);
    return bytes;
  };
  const Bytes bytes = page(0xA5);
  CHECK(bytes == page(0x5A));  // every byte is written
  for (std::size_t side = 0; side < 4; ++side) {
    for (int token = 0; token < kTokens; ++token) {
      std::vector<float> found(24);
      sides[side].read(bytes.data(), found, kTokens, token);
      CHECK(found == decoded(formats[side], encoded(formats[side], row(side, token))));
    }
  }
}

TEST_CASE("a code of every width comes back") {
  for (const int levels : {2, 4, 8, 16, 32, 64, 128, 256}) {
    CAPTURE(levels);
    const CodedFormat format = uniform(16, levels);
    std::vector<float> row(16);
    for (std::size_t i = 0; i < 16; ++i) {
      row[i] = static_cast<float>(static_cast<int>(i * 37 + 11) % levels) - 0.5F * static_cast<float>(levels - 1);
    }
    double square = 0;
    for (const float x : row) square += double{x} * x / 16;
    CodedFormat scaled = format;
    scaled.sigma.assign(16, static_cast<float>(std::sqrt(square)));
    const Bytes bytes = encoded(scaled, row);
    CHECK(coded_row_bytes(scaled) == 2 * static_cast<std::size_t>(std::lround(std::log2(levels))) + 2);
    CHECK(bytes.size() == (coded_row_bytes(scaled) + 5) / 8 * 8 + 2);
    CHECK(decoded(scaled, bytes) == row);
  }
}

TEST_CASE("scales are sixteenths of octaves, and the nearest is taken") {
  CHECK(coded_scale(128) == 1.0F);
  CHECK(coded_scale(144) == 2.0F);
  CHECK(coded_scale(0) == 1.0F / 256);
  CHECK(coded_scale_byte(0) == 0);
  CHECK(coded_scale_byte(std::nanf("")) == 0);
  CHECK(coded_scale_byte(INFINITY) == 255);
  for (int byte = 0; byte < 256; ++byte) {
    CHECK(coded_scale_byte(coded_scale(byte)) == byte);
    CHECK(coded_scale_byte(coded_scale(byte) * 1.021F) == byte);  // 2^(1/32) = 1.0219
    CHECK(coded_scale_byte(coded_scale(byte) * 1.023F) == std::min(byte + 1, 255));
  }
}

TEST_CASE("rows have the bytes and the values that an independent implementation gives them") {
  const SafetensorsFile file(test::data("codec/coded_rows.safetensors"));
  int cases = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    if (!name.ends_with(".levels")) continue;
    const std::string plan = name.substr(0, name.size() - 7);
    CAPTURE(plan);
    CodedFormat format;
    for (const std::int64_t levels : file.load(name).to_int64()) format.levels.push_back(static_cast<int>(levels));
    format.step = floats(file.load(plan + ".step")), format.sigma = floats(file.load(plan + ".sigma"));
    require_valid(format);
    const std::vector<float> rows = floats(file.load(plan + ".rows")), values = floats(file.load(plan + ".decoded"));
    const std::vector<std::int64_t> expected = file.load(plan + ".bytes").to_int64();
    const Bytes bytes = packed(format, rows);
    CHECK(bytes == Bytes(expected.begin(), expected.end()));
    const std::size_t dim = format.levels.size(), size = CodedRows(format).bytes();
    for (std::size_t r = 0; r < rows.size() / dim; ++r) {
      const std::span<const float> row(values.data() + r * dim, dim);
      CHECK(decoded(format, std::span(bytes).subspan(r * size, size)) == std::vector<float>(row.begin(), row.end()));
    }
    ++cases;
  }
  CHECK(cases == 6);
}

TEST_CASE("attention reads the history out of its packed bytes, of whichever kind") {
  constexpr std::size_t kTokens = 12;
  const std::vector<float> rows = gaussian_floats(kTokens * 16, 3), query = gaussian_floats(16, 4);
  HistoryCodec of_levels{{.levels = 5, .group_size = 8}}, of_coded;
  of_coded.coded = std::make_shared<const std::vector<CodedFormat>>(1, uniform(16, 8));
  for (const HistoryCodec& codec : {of_levels, of_coded}) {
    const std::size_t size = packed_row_bytes(codec, 0, 16);
    Bytes bytes(kTokens * size);
    std::vector<float> exchanged = rows;
    for (std::size_t t = 0; t < kTokens; ++t) {
      const std::span<std::uint8_t> own = std::span(bytes).subspan(t * size, size);
      encode_packed_row(codec, 0, std::span(rows).subspan(t * 16, 16), own);
      if (t >= 2 && t + 3 < kTokens) decode_packed_row(codec, 0, own, std::span(exchanged).subspan(t * 16, 16));
    }
    const Query last{{query.begin(), query.end()}, kTokens - 1, 0};
    const CacheRows cache = packed_cache_rows(rows, 16, bytes, codec, 0, Precision::kExact);
    const CacheRows by_hand{16, exchanged, {}};
    CHECK(attend(last, cache, cache, {2, 3}).output == attend_exactly(last, by_hand, by_hand).output);
    CHECK(attend(last, cache, cache, {2, 3}).output != attend_exactly(last, cache, cache).output);
    CHECK_THROWS_AS((void)attend(last, cache, CacheRows{16, query, query}, {2, 3}), std::logic_error);
    CHECK_THROWS_AS((void)packed_cache_rows(rows, 16, std::span(bytes).first(size), codec, 0, Precision::kExact),
                    std::logic_error);
  }
}

TEST_CASE("formats that contradict themselves are refused") {
  CodedFormat good = uniform(16, 4);
  std::fill(good.levels.begin() + 8, good.levels.end(), 1);
  require_valid(good);
  CHECK(coded_row_bytes(good) == 2 + 2);
  const auto broken = [&](auto change) {
    CodedFormat format = good;
    change(format);
    return format;
  };
  const std::vector<CodedFormat> bad{
      broken([](CodedFormat& f) { f.levels[3] = 2; }),
      broken([](CodedFormat& f) { f.levels.assign(16, 3); }),
      broken([](CodedFormat& f) { f.levels.assign(16, 512); }),
      broken([](CodedFormat& f) { std::reverse(f.levels.begin(), f.levels.end()); }),
      broken([](CodedFormat& f) { f.step[0] = 0; }),
      broken([](CodedFormat& f) { f.sigma[0] = NAN; }),
      broken([](CodedFormat& f) { f.step.pop_back(); }),
      broken([](CodedFormat& f) { f.levels.resize(12), f.step.resize(12), f.sigma.resize(12); })};
  for (const CodedFormat& format : bad) CHECK_THROWS_AS(require_valid(format), std::logic_error);
}

}  // namespace oscar::reference
