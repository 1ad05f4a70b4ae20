// SPDX-License-Identifier: MIT
// Operations row by row, and eigenproblems.
#include <algorithm>
#include <cstring>

#include "unit/kernels/agreement.hpp"

namespace oscar::test {
namespace {

/// max |a - b| in units of the last place of b, for 24 or 8 bits of mantissa.
double largest_ulps(std::span<const float> a, std::span<const float> b, int mantissa_bits) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    int exponent = 0;
    (void)std::frexp(b[i], &exponent);
    largest = std::max(largest, std::abs(double{a[i]} - b[i]) / std::ldexp(1.0, exponent - mantissa_bits));
  }
  return largest;
}

template <class T>
double differing(std::span<const T> a, std::span<const T> b) {
  double count = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  return count;
}
template <class T>
double differing(const std::vector<T>& a, const std::vector<T>& b) {
  return differing(std::span<const T>(a), std::span<const T>(b));
}

/// Ordinary rows, and rows that are zero, constant, huge, tiny or of few values; some have a zero of either sign as
/// their smallest value, or a clip threshold of zero.
std::vector<float> codec_rows(std::size_t count, std::size_t dim) {
  const std::vector<double> random = gaussian(count * dim, 21);
  std::vector<float> rows(random.begin(), random.end());
  for (std::size_t row = 0; row < count; ++row) {
    const std::span<float> x = std::span(rows).subspan(row * dim, dim);
    for (std::size_t i = 0; i < dim; ++i) {
      if (row % 11 == 1) x[i] = 0.0F;
      if (row % 11 == 2) x[i] = -5.0F;
      if (row % 11 == 3) x[i] *= 1e30F;
      if (row % 11 == 4) x[i] *= 1e-30F;
      if (row % 11 == 5) x[i] = std::round(x[i]);
      if (row % 11 == 6) x[i] = round_to_bf16(x[i]);
      if (row % 11 == 7) x[i] = i % 2 == row / 11 % 2 ? 0.0F : -0.0F;
      if (row % 11 == 8) x[i] = i % 3 == 0 ? (i % 2 == row / 11 % 2 ? 0.0F : -0.0F) : std::abs(x[i]);
      if (row % 11 == 9 && i % 5 != row / 11 % 5) x[i] = 0.0F;
    }
  }
  return rows;
}

/// max |A V - V diag(values)| and max |V^T V - I|.
struct Residuals {
  double equation = 0, orthogonality = 0;
};
Residuals residuals(std::span<const double> a, const Eigenpairs& pairs, std::size_t dim) {
  Residuals worst;
  const auto v = [&](std::size_t i, std::size_t j) { return pairs.vectors[i * dim + j]; };
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) {
      double product = 0, dot = 0;
      for (std::size_t k = 0; k < dim; ++k) {
        product += a[i * dim + k] * v(k, j);
        dot += v(k, i) * v(k, j);
      }
      worst.equation = std::max(worst.equation, std::abs(product - v(i, j) * pairs.values[j]));
      worst.orthogonality = std::max(worst.orthogonality, std::abs(dot - (i == j ? 1.0 : 0.0)));
    }
  }
  return worst;
}

}  // namespace

void check_codec(const Pair& on, const Shape& shape, const RowCodec& codec, Precision precision) {
  const std::vector<float> rows =
      codec_rows(static_cast<std::size_t>(shape.tokens), static_cast<std::size_t>(shape.head_dim));
  std::vector<float> expected(rows.size());
  Guarded<float> got(rows.size()), without_codes(rows.size());
  QuantizedRows expected_codes, codes;
  on.expected.quantize(rows, shape.head_dim, codec, precision, expected, &expected_codes);
  on.got.quantize(rows, shape.head_dim, codec, precision, got.get(), &codes);
  on.got.quantize(rows, shape.head_dim, codec, precision, without_codes.get(), nullptr);
  CHECK((got.intact() && without_codes.intact()));
  const double bits = differing<float>(got.get(), expected) + differing<float>(without_codes.get(), expected) +
                      differing(codes.codes, expected_codes.codes) + differing(codes.scale, expected_codes.scale) +
                      differing(codes.zero, expected_codes.zero);
  check_error("quantize, values that differ", shape, bits, 0);
}

void check_coded_rows(const Pair& on, const Shape& shape) {
  const std::vector<float> rows =
      codec_rows(static_cast<std::size_t>(shape.tokens), static_cast<std::size_t>(shape.head_dim));
  std::vector<CodedFormat> formats = *coded_formats(6, shape.head_dim);
  formats.push_back(formats.front());
  for (int& levels : formats.back().levels) levels = std::min(levels, 8);  // no wide class
  formats.push_back(formats.front());
  std::ranges::fill(formats.back().levels, 1);  // nothing is stored
  for (const CodedFormat& format : formats) {
    HistoryCodec codec;
    codec.coded = std::make_shared<const std::vector<CodedFormat>>(1, format);
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      std::vector<float> expected(rows.size());
      Guarded<float> got(rows.size());
      QuantizedRows expected_bytes, bytes;
      on.expected.quantize(rows, shape.head_dim, codec, precision, expected, &expected_bytes);
      on.got.quantize(rows, shape.head_dim, codec, precision, got.get(), &bytes);
      CHECK(got.intact());
      CHECK(!bytes.codes.empty());
      check_error("coded rows, values that differ", shape, differing<float>(got.get(), expected), 0);
      check_error("coded rows, bytes that differ", shape, differing(bytes.codes, expected_bytes.codes), 0);
    }
  }
}

void check_rotation(const Pair& on, const Shape& shape) {
  const Tensor x = activations(shape, 6, 22);
  for (const int count : {1, 2, 6}) {
    const MatrixStack matrices = gaussian_matrices(count, shape.head_dim, 23);
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      const bool serving = precision == Precision::kServing;
      std::vector<float> expected(static_cast<std::size_t>(x.size()));
      Guarded<float> got(expected.size());
      on.expected.rotate(heads_view(x, "x"), matrices, precision, expected);
      on.got.rotate(heads_view(x, "x"), matrices, precision, got.get());
      CHECK(got.intact());
      CHECK((!serving || all_bf16(got.get())));
      check_error(serving ? "rotate, serving, units in the last place" : "rotate, units in the last place", shape,
                  largest_ulps(got.get(), expected, serving ? 8 : 24), on.allowed.rotate_ulps);
    }
  }
}

void check_eigenpairs(const Pair& on, const MatrixStack& matrices) {
  const Shape shape{DType::kF64, matrices.dim, matrices.count};
  const std::vector<Eigenpairs> expected = on.expected.eigh(matrices), got = on.got.eigh(matrices);
  REQUIRE(got.size() == expected.size());
  double values = 0, equation = 0, orthogonality = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double scale = std::max(largest_magnitude(expected[i].values), 1e-300);
    const Residuals r = residuals(matrices[static_cast<int>(i)], got[i], static_cast<std::size_t>(matrices.dim));
    CHECK(std::is_sorted(got[i].values.begin(), got[i].values.end()));
    values = std::max(values, largest_difference(got[i].values, expected[i].values) / scale);
    equation = std::max(equation, r.equation / scale);
    orthogonality = std::max(orthogonality, r.orthogonality);
  }
  check_error("eigh, values", shape, values, on.allowed.eigen);
  check_error("eigh, A V - V values", shape, equation, on.allowed.eigen);
  check_error("eigh, V^T V - 1", shape, orthogonality, on.allowed.eigen);
}

}  // namespace oscar::test
