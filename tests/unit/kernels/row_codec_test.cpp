// SPDX-License-Identifier: MIT
// The codec on the CPU and in the reference: by hand, against an independent implementation, and by what theory says.
#include "kernels/cpu/row_codec.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/reference/reference_backend.hpp"
#include "kernels/reference/row_codec.hpp"
#include "support/support.hpp"
#include "tensor/hdf5.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar {
namespace {

/// Runs the codec on the CPU, and checks that the reference gives the same bits and bytes. Returns the codes.
reference::QuantizedRows quantize(std::span<const float> rows, int dim, const RowCodec& codec, Precision precision,
                                  std::span<float> decoded) {
  std::vector<float> by_reference(rows.size());
  reference::make_reference_backend()->quantize(rows, dim, codec, precision, by_reference);
  cpu::quantize(rows, dim, codec, precision, decoded);
  CHECK(std::memcmp(decoded.data(), by_reference.data(), decoded.size_bytes()) == 0);
  reference::QuantizedRows all;
  const auto size = static_cast<std::size_t>(dim);
  std::vector<std::uint8_t> bytes, row_bytes(reference::packed_row_bytes(codec, 0, size));
  for (std::size_t at = 0; at < rows.size(); at += size) {
    const reference::QuantizedRows own = reference::encode_row(codec, rows.subspan(at, size));
    all.codes.insert(all.codes.end(), own.codes.begin(), own.codes.end());
    all.scale.insert(all.scale.end(), own.scale.begin(), own.scale.end());
    all.zero.insert(all.zero.end(), own.zero.begin(), own.zero.end());
    reference::encode_packed_row(codec, 0, rows.subspan(at, size), row_bytes);
    bytes.insert(bytes.end(), row_bytes.begin(), row_bytes.end());
  }
  CHECK(std::ranges::equal(cpu::PackedHistory(rows, 1, dim, codec).bytes(0), bytes));
  return all;
}

/// 10 log10 of signal over noise of N(0, 1) rows of 128.
double gaussian_sqnr_db(const RowCodec& codec) {
  constexpr std::size_t kRows = 8000;
  const std::vector<float> rows = test::gaussian_floats(kRows * 128, 7);
  std::vector<float> decoded(rows.size());
  quantize(rows, 128, codec, Precision::kExact, decoded);
  double signal = 0;
  double noise = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    signal += double{rows[i]} * rows[i];
    noise += (double{rows[i]} - decoded[i]) * (double{rows[i]} - decoded[i]);
  }
  return 10 * std::log10(signal / noise);
}

/// Codes as the reference file stores them, INT2.
std::vector<std::uint8_t> packed(const std::vector<std::uint8_t>& codes, std::size_t dim) {
  std::vector<std::uint8_t> bytes(codes.size() / 4);
  for (std::size_t row = 0; row < codes.size(); row += dim) {
    reference::pack_codes(std::span(codes).subspan(row, dim), 4, std::span(bytes).subspan(row / 4, dim / 4));
  }
  return bytes;
}

template <class T>
std::vector<T> copy_of(const Tensor& tensor) {
  return {tensor.values<T>().begin(), tensor.values<T>().end()};
}

}  // namespace

TEST_CASE("the clip threshold is the rank-th magnitude of the whole row") {
  const std::vector<float> row{-8.0F, 1.0F, -2.0F, 3.0F, 4.0F, -5.0F, 6.0F, 7.0F};
  std::vector<float> scratch(row.size());
  CHECK(cpu::clip_threshold(row, 0.5, scratch) == 5.0F);
  CHECK(cpu::clip_threshold(row, 1.0, scratch) == 8.0F);
  CHECK(reference::clip_threshold(row, 0.5) == 5.0F);
  CHECK(reference::clip_threshold(row, 1.0) == 8.0F);
}

TEST_CASE("codes and parameters equal the independent oracle to the bit") {
  const Hdf5Reader oracle(test::data("codec/oracle_rows.h5"));
  const Tensor rows = oracle.read("/rows");
  const RowCodec sort{.clip_ratio = 0.96};
  for (const auto& [name, codec] : {std::pair{"minmax", RowCodec{}}, {"clip_sort", sort}}) {
    CAPTURE(name);
    const std::string prefix = std::string("/") + name + ".";
    std::vector<float> decoded(static_cast<std::size_t>(rows.size()));
    reference::QuantizedRows codes = quantize(rows.values<float>(), 128, codec, Precision::kExact, decoded);
    CHECK(packed(codes.codes, 128) == copy_of<std::uint8_t>(oracle.read(prefix + "packed")));
    CHECK(codes.scale == copy_of<float>(oracle.read(prefix + "scale")));
    const std::vector<float> minimum = copy_of<float>(oracle.read(prefix + "minimum"));
    REQUIRE(minimum.size() == codes.zero.size());
    for (std::size_t i = 0; i < minimum.size(); ++i) CHECK(-codes.zero[i] * codes.scale[i] == minimum[i]);
  }
}

TEST_CASE("lloyd-max by hand: published thresholds and evenly spaced levels, after the clip") {
  const std::vector<float> row{-3.0F, -1.0F, 1.0F, 3.0F};  // mean 0, standard deviation 5^1/2
  std::vector<float> decoded(4);
  reference::QuantizedRows codes = quantize(row, 4, RowCodec{.grid = Grid::kLloydMax}, Precision::kExact, decoded);
  CHECK(codes.codes == std::vector<std::uint8_t>{0, 1, 2, 3});
  CHECK(codes.scale[0] == doctest::Approx(2.610370).epsilon(1e-6));  // 1.16 * 2 * 1.50956 / 3 * 5^1/2
  CHECK(codes.zero[0] == 1.5F);
  CHECK(decoded[3] == doctest::Approx(3.915555).epsilon(1e-6));

  // Clipped to +-1: the outer codes, 1 standard deviation out.
  codes = quantize(row, 4, RowCodec{.clip_ratio = 0.25, .grid = Grid::kLloydMax}, Precision::kExact, decoded);
  CHECK(codes.codes == std::vector<std::uint8_t>{0, 0, 3, 3});
  CHECK(codes.scale[0] == doctest::Approx(1.167393).epsilon(1e-6));

  const std::vector<float> shifted{7.0F, 9.0F, 11.0F, 13.0F};
  codes = quantize(shifted, 4, RowCodec{.grid = Grid::kLloydMax}, Precision::kExact, decoded);
  CHECK(codes.zero[0] == doctest::Approx(1.5 - 10 / 2.610370).epsilon(1e-6));
  CHECK_ERROR(check_codec({.levels = 8, .grid = Grid::kLloydMax}), UsageError, "has 4 levels, not 8");
}

TEST_CASE("scales and zeros are what their dtype holds; codes are taken before") {
  const std::vector<float> row{-3.0F, -1.0F, 1.0F, 3.0F};
  std::vector<float> decoded(4);
  RowCodec codec{.grid = Grid::kLloydMax, .scale_dtype = DType::kBF16};
  reference::QuantizedRows codes = quantize(row, 4, codec, Precision::kExact, decoded);
  CHECK(codes.scale[0] == 2.609375F);  // 2.61037 to 8 bits
  CHECK(decoded == std::vector<float>{-3.9140625F, -1.3046875F, 1.3046875F, 3.9140625F});
  codec.scale_dtype = DType::kF16;
  codes = quantize(row, 4, codec, Precision::kExact, decoded);
  CHECK(codes.scale[0] == 2.611328125F);  // to 11 bits
  // 5.0 alone has a zero of -1.5e9: float16 saturates, and what it decodes to is finite.
  const std::vector<float> constant(4, 5.0F);
  codes = quantize(constant, 4, RowCodec{.scale_dtype = DType::kF16}, Precision::kExact, decoded);
  CHECK(codes.zero[0] == -65504.0F);
  for (const float x : decoded) CHECK(std::isfinite(x));
  CHECK_ERROR(check_codec({.scale_dtype = DType::kF64}), UsageError, "scales cannot be float64");
}

TEST_CASE("signal to noise of Gaussian rows is what theory and scripts/reference say") {
  constexpr Grid kLloyd = Grid::kLloydMax;
  const std::vector<std::pair<RowCodec, double>> expected{{{}, 6.01},
                                                          {{.group_size = 64}, 6.94},
                                                          {{.group_size = 32}, 8.12},
                                                          {{.clip_ratio = 0.98}, 7.04},
                                                          {{.clip_ratio = 0.96}, 8.07},
                                                          {{.clip_ratio = 0.92}, 8.96},
                                                          {{.clip_ratio = 0.88}, 9.27},
                                                          {{.levels = 8}, 13.40},
                                                          {{.levels = 16}, 20.03},
                                                          {{.grid = kLloyd}, 8.361},
                                                          {{.clip_ratio = 0.96, .grid = kLloyd}, 8.513},
                                                          {{.group_size = 32, .grid = kLloyd}, 8.556}};
  for (const auto& [codec, db] : expected) CHECK(gaussian_sqnr_db(codec) == doctest::Approx(db).epsilon(0.004));
}

TEST_CASE("rows without range decode to what they hold, and values of any size to finite numbers") {
  for (const float value : {0.0F, -5.0F, 1e-30F, 3e4F}) {
    for (const RowCodec& codec : {RowCodec{.clip_ratio = 0.9}, RowCodec{.grid = Grid::kLloydMax}}) {
      const std::vector<float> row(8, value);
      std::vector<float> decoded(8);
      quantize(row, 8, codec, Precision::kServing, decoded);
      for (const float x : decoded) CHECK(x == doctest::Approx(value).epsilon(0.004));
    }
  }
  const std::vector<float> wild{std::numeric_limits<float>::infinity(), std::nanf(""), 1.0F, -1.0F};
  std::vector<float> decoded(4);
  cpu::quantize(wild, 4, RowCodec{}, Precision::kExact, decoded);
  CHECK_NOTHROW(cpu::PackedHistory(wild, 1, 4, RowCodec{}));  // codes are below 4
}

TEST_CASE("serving rounds decoded rows to bfloat16; threads change no bit") {
  const std::vector<float> rows = test::gaussian_floats(5000 * 16, 3);
  std::vector<float> exact(rows.size()), serving(rows.size()), again(rows.size());
  quantize(rows, 16, RowCodec{.clip_ratio = 0.9}, Precision::kExact, exact);
  set_num_threads(1);
  quantize(rows, 16, RowCodec{.clip_ratio = 0.9}, Precision::kServing, serving);
  set_num_threads(3);
  quantize(rows, 16, RowCodec{.clip_ratio = 0.9}, Precision::kServing, again);
  set_num_threads(0);
  CHECK(serving == again);
  CHECK(exact != serving);
  for (std::size_t i = 0; i < rows.size(); ++i) REQUIRE(serving[i] == round_to_bf16(exact[i]));
}

TEST_CASE("a group size that does not divide the head is refused") {
  CHECK_ERROR(checked_group_size({.group_size = 48}, 128), UsageError, "does not divide head_dim 128");
  CHECK_ERROR(checked_group_size({.levels = 1}, 128), UsageError, "1 levels");
  CHECK(checked_group_size({}, 96) == 96);
}

}  // namespace oscar
