// SPDX-License-Identifier: MIT
#include "unit/kernels/samples.hpp"

#include <algorithm>
#include <cstdio>
#include <random>

namespace oscar::test {

std::vector<double> gaussian(std::size_t size, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(size);
  for (double& x : values) x = normal(engine);
  return values;
}

Tensor activations(const Shape& shape, int heads, unsigned seed) {
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const std::vector<double> random =
      gaussian(static_cast<std::size_t>(shape.tokens) * static_cast<std::size_t>(heads) * dim, seed);
  std::vector<float> values(random.begin(), random.end());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= i % dim % 29 == 3 ? 6.0F : 1.0F;
  return convert(Tensor::from({shape.tokens, heads, shape.head_dim}, std::span<const float>(values)), shape.dtype);
}

MatrixStack gaussian_matrices(int count, int dim, unsigned seed) {
  MatrixStack stack(count, dim);
  stack.data = gaussian(stack.data.size(), seed);
  for (double& x : stack.data) x /= std::sqrt(static_cast<double>(dim));
  return stack;
}

MatrixStack symmetric_matrices(int count, int dim, unsigned seed) {
  const MatrixStack any = gaussian_matrices(count, dim, seed);
  MatrixStack stack(count, dim);
  const auto size = static_cast<std::size_t>(dim);
  for (int m = 0; m < count; ++m) {
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < size; ++j) stack[m][i * size + j] = any[m][i * size + j] + any[m][j * size + i];
    }
  }
  return stack;
}

MatrixStack eigenproblems(int dim) {
  MatrixStack stack = symmetric_matrices(4, dim, 31);
  const auto size = static_cast<std::size_t>(dim);
  const std::vector<double> u = gaussian(size, 32);
  const MatrixStack factors = gaussian_matrices(1, dim, 33);
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < size; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < size; ++k) {
        sum += factors[0][i * size + k] * factors[0][j * size + k] * std::exp(-0.2 * double(k));
      }
      stack[1][i * size + j] = sum;
      stack[2][i * size + j] = (i == j ? 1.0 : 0.0) + u[i] * u[j];
      stack[3][i * size + j] = 0;
    }
  }
  return stack;
}

std::shared_ptr<const std::vector<CodedFormat>> coded_formats(int kv_heads, int dim) {
  std::vector<CodedFormat> formats;
  for (int head = 0; head < kv_heads; ++head) {
    CodedFormat& format = formats.emplace_back();
    for (int i = 0; i < dim; ++i) {
      const int bits = std::max(0, 8 - head % 5 - i / 8 * 9 / (dim / 8));
      format.levels.push_back(1 << bits);
      format.sigma.push_back(1.0F + 0.125F * static_cast<float>(i % 5));
      format.step.push_back(bits == 0 ? 0.0F : 5.0F / static_cast<float>(1 << bits) * format.sigma.back());
    }
  }
  return std::make_shared<const std::vector<CodedFormat>>(std::move(formats));
}

void check_error(const std::string& what, const Shape& shape, double error, double tolerance) {
  std::printf("measured: %s | %s | %d | %lld | %.3g | %.3g\n", what.c_str(), std::string(name_of(shape.dtype)).c_str(),
              shape.head_dim, static_cast<long long>(shape.tokens), error, tolerance);
  INFO(what, ", ", std::string(name_of(shape.dtype)), ", head_dim ", shape.head_dim, ", tokens ", shape.tokens);
  CHECK(error <= tolerance);
}

bool all_bf16(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return round_to_bf16(x) == x; });
}

double relative_error(const MatrixStack& a, const MatrixStack& b) {
  double worst = 0;
  for (int m = 0; m < b.count; ++m) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < b[m].size(); ++i) {
      difference += (a[m][i] - b[m][i]) * (a[m][i] - b[m][i]);
      norm += b[m][i] * b[m][i];
    }
    const double error = difference == 0 ? 0.0 : std::sqrt(difference / norm);
    worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
  }
  return worst;
}

}  // namespace oscar::test
