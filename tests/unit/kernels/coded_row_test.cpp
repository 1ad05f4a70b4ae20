// SPDX-License-Identifier: MIT
// Rows of the coded cache: bytes by hand, bytes and values of an independent implementation, and what attention reads.
#include "kernels/reference/coded_row.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/reference/attention.hpp"
#include "kernels/reference/packing.hpp"
#include "support/support.hpp"
#include "tensor/safetensors.hpp"
#include "unit/kernels/samples.hpp"

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
  Bytes bytes(coded_row_bytes(format));
  encode_coded_row(format, row, bytes);
  return bytes;
}

std::vector<float> decoded(const CodedFormat& format, std::span<const std::uint8_t> bytes) {
  std::vector<float> row(format.levels.size());
  decode_coded_row(format, bytes, row);
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

TEST_CASE("bits of a block lie where the format says") {
  // Scale byte 128 is scale 1. Codes of 8 levels are a piece of two bits, then one of one bit.
  const std::vector<float> row{-3.5F, -2.5F, -1.5F, -0.5F, 0.5F, 1.5F, 2.5F, 3.5F};  // codes 0 … 7 at scale 1
  CodedFormat format = uniform(8, 8);
  format.sigma.assign(8, std::sqrt(5.25F));  // the root mean square of the row: scale 1
  const Bytes bytes = encoded(format, row);
  // High pairs 0 0 1 1 2 2 3 3: byte 0 has those of channels 0, 2, 4, 6; byte 1 those of 1, 3, 5, 7; low bits 01010101.
  const int pairs = 0 | 1 << 2 | 2 << 4 | 3 << 6;
  CHECK(bytes == Bytes{static_cast<std::uint8_t>(pairs), static_cast<std::uint8_t>(pairs), 0b10101010, 0, 128});
  CHECK(decoded(format, bytes) == row);
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
    CHECK(bytes.size() == 2 * static_cast<std::size_t>(std::lround(std::log2(levels))) + 2);
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
    const std::size_t dim = format.levels.size(), size = coded_row_bytes(format);
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
