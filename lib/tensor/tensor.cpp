// SPDX-License-Identifier: MIT
#include "tensor/tensor.hpp"

#include <algorithm>
#include <cstring>

#include "base/errors.hpp"

namespace oscar {
namespace {

template <class T>
Tensor tensor_of(DType dtype, std::vector<std::int64_t> shape, std::span<const T> values) {
  Tensor tensor(dtype, std::move(shape));
  OSCAR_CHECK(tensor.data.size() == values.size_bytes());
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), values.size_bytes());
  return tensor;
}

/// Calls f with a pointer of the stored type for each type that has a plain C++ equivalent, or a converter for the
/// halves.
template <class Out>
void convert_elements(DType dtype, const std::byte* data, std::size_t count, Out* out) {
  const auto copy = [&](auto tag) {
    const auto* typed = reinterpret_cast<const decltype(tag)*>(data);
    std::transform(typed, typed + count, out, [](auto v) { return static_cast<Out>(v); });
  };
  const auto* half = reinterpret_cast<const std::uint16_t*>(data);
  switch (dtype) {
    case DType::kF64:
      return copy(double{});
    case DType::kF32:
      return copy(float{});
    case DType::kI64:
      return copy(std::int64_t{});
    case DType::kI32:
      return copy(std::int32_t{});
    case DType::kI16:
      return copy(std::int16_t{});
    case DType::kI8:
      return copy(std::int8_t{});
    case DType::kU8:
    case DType::kBool:
      return copy(std::uint8_t{});
    case DType::kBF16:
      std::transform(half, half + count, out, [](std::uint16_t v) { return static_cast<Out>(float_from_bf16(v)); });
      return;
    case DType::kF16:
      std::transform(half, half + count, out, [](std::uint16_t v) { return static_cast<Out>(float_from_f16(v)); });
      return;
    case DType::kF8E4M3: {
      const auto* byte = reinterpret_cast<const std::uint8_t*>(data);
      std::transform(byte, byte + count, out, [](std::uint8_t v) { return static_cast<Out>(float_from_f8e4m3(v)); });
      return;
    }
    case DType::kF8E5M2:
    case DType::kE8M0:
      throw DataError("values of " + std::string(name_of(dtype)) + " are read as weights of models only", "",
                      "save them as float32");
  }
}

}  // namespace

std::int64_t num_elements(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) {
      throw DataError("impossible tensor shape " + shape_text(shape), "", "write the file again");
    }
  }
  return count;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

Tensor::Tensor(DType dtype_, std::vector<std::int64_t> shape_)
    : dtype(dtype_), shape(std::move(shape_)), data(static_cast<std::size_t>(num_elements(shape)) * size_of(dtype_)) {}

Tensor Tensor::from(std::vector<std::int64_t> shape, std::span<const float> values) {
  return tensor_of(DType::kF32, std::move(shape), values);
}
Tensor Tensor::from(std::vector<std::int64_t> shape, std::span<const double> values) {
  return tensor_of(DType::kF64, std::move(shape), values);
}
Tensor Tensor::from(std::vector<std::int64_t> shape, std::span<const std::int32_t> values) {
  return tensor_of(DType::kI32, std::move(shape), values);
}

std::vector<double> Tensor::to_doubles() const {
  std::vector<double> out(static_cast<std::size_t>(size()));
  convert_elements(dtype, data.data(), out.size(), out.data());
  return out;
}

std::vector<std::int64_t> Tensor::to_int64() const {
  if (dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16) {
    throw DataError("expected integers, found " + std::string(name_of(dtype)), "",
                    "write the file with an integer type");
  }
  std::vector<std::int64_t> out(static_cast<std::size_t>(size()));
  convert_elements(dtype, data.data(), out.size(), out.data());
  return out;
}

Tensor convert(const Tensor& source, DType dtype) {
  if (source.dtype == dtype) return source;
  OSCAR_CHECK(is_activation_dtype(source.dtype) && is_activation_dtype(dtype));
  std::vector<float> values(static_cast<std::size_t>(source.size()));
  convert_elements(source.dtype, source.data.data(), values.size(), values.data());
  Tensor out(dtype, source.shape);
  if (dtype == DType::kF32) {
    std::copy(values.begin(), values.end(), out.values<float>().begin());
  } else {
    const auto narrow = dtype == DType::kBF16 ? bf16_from_float : f16_from_float;
    std::transform(values.begin(), values.end(), out.values<std::uint16_t>().begin(), narrow);
  }
  return out;
}

void doubles_from(DType dtype, const std::byte* data, std::size_t count, double* out) {
  convert_elements(dtype, data, count, out);
}

void HeadsView::row(std::int64_t token, int head, std::span<float> out) const {
  const std::size_t begin = (static_cast<std::size_t>(token) * num_heads + head) * head_dim;
  convert_elements(dtype, data + begin * size_of(dtype), static_cast<std::size_t>(head_dim), out.data());
}

void HeadsView::token_rows(std::int64_t begin, std::int64_t count, float* out) const {
  convert_elements(dtype, data + begin * bytes_per_token(), static_cast<std::size_t>(count * num_heads * head_dim),
                   out);
}

void HeadsView::head_rows(std::int64_t begin, std::int64_t count, int head, double* out) const {
  for (std::int64_t t = 0; t < count; ++t) {
    const std::size_t start = (static_cast<std::size_t>(begin + t) * num_heads + head) * head_dim;
    convert_elements(dtype, data + start * size_of(dtype), static_cast<std::size_t>(head_dim), out + t * head_dim);
  }
}

std::vector<float> HeadsView::floats() const {
  std::vector<float> rows(static_cast<std::size_t>(num_tokens) * static_cast<std::size_t>(num_heads * head_dim));
  token_rows(0, num_tokens, rows.data());
  return rows;
}

HeadsView heads_view(const Tensor& tensor, const std::string& what) {
  if (tensor.shape.size() != 3 || !is_activation_dtype(tensor.dtype)) {
    throw DataError("expected [tokens, heads, head_dim] of float32, float16 or bfloat16, found " +
                        shape_text(tensor.shape) + " of " + std::string(name_of(tensor.dtype)),
                    what, "dump this layer again");
  }
  return {tensor.data.data(), tensor.dtype, tensor.shape[0], static_cast<int>(tensor.shape[1]),
          static_cast<int>(tensor.shape[2])};
}

MatrixStack MatrixStack::from(const Tensor& tensor, const std::string& what) {
  const std::size_t rank = tensor.shape.size();
  const bool square = (rank == 2 || rank == 3) && tensor.shape[rank - 1] == tensor.shape[rank - 2] &&
                      std::ranges::all_of(tensor.shape, [](std::int64_t n) { return n > 0; });
  if (!square || (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF64)) {
    throw DataError("expected square float32 matrices [d, d] or [heads, d, d], found " + shape_text(tensor.shape) +
                        " of " + std::string(name_of(tensor.dtype)),
                    what, "check that this is a rotation file");
  }
  MatrixStack stack;
  stack.count = rank == 3 ? static_cast<int>(tensor.shape[0]) : 1;
  stack.dim = static_cast<int>(tensor.shape[rank - 1]);
  stack.data = tensor.to_doubles();
  return stack;
}

MatrixStack MatrixStack::identity(int dim) {
  MatrixStack stack(1, dim);
  for (int i = 0; i < dim; ++i) stack.data[static_cast<std::size_t>(i) * (dim + 1)] = 1.0;
  return stack;
}

MatrixStack MatrixStack::transposed() const {
  MatrixStack result(count, dim);
  const auto n = static_cast<std::size_t>(dim);
  for (std::size_t i = 0; i < data.size(); ++i) {
    const std::size_t matrix = i / (n * n), row = i / n % n, column = i % n;
    result.data[(matrix * n + column) * n + row] = data[i];
  }
  return result;
}

double MatrixStack::trace(int i) const {
  double sum = 0;
  for (std::size_t at = 0; at < stride(); at += static_cast<std::size_t>(dim) + 1) sum += (*this)[i][at];
  return sum;
}

Tensor MatrixStack::to_f32(bool squeeze) const {
  std::vector<std::int64_t> shape{dim, dim};
  if (count != 1 || !squeeze) shape.insert(shape.begin(), count);
  Tensor out(DType::kF32, std::move(shape));
  std::transform(data.begin(), data.end(), out.values<float>().begin(), [](double v) { return static_cast<float>(v); });
  return out;
}

}  // namespace oscar
