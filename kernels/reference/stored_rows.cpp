// SPDX-License-Identifier: MIT
#include "kernels/reference/stored_rows.hpp"

#include <cmath>
#include <cstddef>

#include "base/check.hpp"
#include "kernels/reference/row_codec.hpp"
#include "tensor/dtype.hpp"

namespace oscar::reference {

void rms_norm_row(std::span<float> row, std::span<const float> weight, NormWeight type, float epsilon) {
  OSCAR_CHECK(row.size() == weight.size() && !row.empty() && epsilon > 0);
  const float sum = strand_sum<float>(row.size(), [&](std::size_t i) { return row[i] * row[i]; });
  const float mean = sum / static_cast<float>(row.size()) + epsilon;
  const auto scale = static_cast<float>(1 / std::sqrt(double{mean}));
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float normed = row[i] * scale;
    row[i] = round_to_bf16((type == NormWeight::kBfloat16 ? round_to_bf16(normed) : normed) * weight[i]);
  }
}

void rope_row(std::span<float> row, std::span<const float> cos_sin, bool interleaved) {
  const std::size_t pairs = cos_sin.size() / 2;
  OSCAR_CHECK(cos_sin.size() % 2 == 0 && cos_sin.size() <= row.size());
  for (std::size_t f = 0; f < pairs; ++f) {
    float& a = row[interleaved ? 2 * f : f];
    float& b = row[interleaved ? 2 * f + 1 : f + pairs];
    const float x = a, y = b, cosine = cos_sin[f], sine = cos_sin[f + pairs];
    a = round_to_bf16(x * cosine - y * sine);
    b = round_to_bf16(y * cosine + x * sine);
  }
}

namespace {

/// Returns x as float32, (tokens, heads, d).
std::vector<float> floats(HeadsView x) {
  std::vector<float> rows(static_cast<std::size_t>(x.num_tokens) * static_cast<std::size_t>(x.num_heads * x.head_dim));
  x.token_rows(0, x.num_tokens, rows.data());
  return rows;
}

template <class T>
std::vector<double> rounded(const std::vector<T>& values, Precision precision) {
  std::vector<double> result;
  for (const T value : values) result.push_back(reference::rounded(double{value}, precision));
  return result;
}

}  // namespace

double rounded(double value, Precision precision) {
  return precision == Precision::kServing ? double{round_to_bf16(static_cast<float>(value))} : value;
}

void rotate(HeadsView x, const MatrixStack& rotated_from_native, Precision precision, std::span<float> rows) {
  OSCAR_CHECK(x.head_dim == rotated_from_native.dim && x.num_heads % rotated_from_native.count == 0);
  const std::vector<double> native = rounded(floats(x), precision);
  const auto dim = static_cast<std::size_t>(x.head_dim), heads = static_cast<std::size_t>(x.num_heads);
  OSCAR_CHECK(rows.size() == native.size());
  MatrixStack matrices = rotated_from_native;
  matrices.data = rounded(matrices.data, precision);
  const int sharing = x.num_heads / matrices.count;
  for (std::size_t row = 0; row < native.size() / dim; ++row) {
    const std::span<const double> matrix = matrices[static_cast<int>(row % heads) / sharing];
    for (std::size_t c = 0; c < dim; ++c) {
      double sum = 0;
      for (std::size_t i = 0; i < dim; ++i) sum += native[row * dim + i] * matrix[i * dim + c];
      rows[row * dim + c] = static_cast<float>(rounded(double{static_cast<float>(sum)}, precision));
    }
  }
}

std::vector<float> stored_rows(HeadsView x, const MatrixStack* rotated_from_native, std::span<const double> mean,
                               Precision precision) {
  std::vector<float> rows = floats(x);
  if (rotated_from_native == nullptr) {
    for (float& value : rows) value = static_cast<float>(rounded(double{value}, precision));
    return rows;
  }
  for (std::size_t i = 0; i < rows.size() && !mean.empty(); ++i) rows[i] -= static_cast<float>(mean[i % mean.size()]);
  std::vector<float> turned(rows.size());
  rotate(heads_view(rows, x.num_tokens, x.num_heads, x.head_dim), *rotated_from_native, precision, turned);
  return turned;
}

}  // namespace oscar::reference
