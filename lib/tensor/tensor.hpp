// SPDX-License-Identifier: MIT
// The values that files hold and stages exchange: an owning tensor of any type, a view of per-head rows, a stack of
// fp64 matrices. All are contiguous and row-major. Non-goals: broadcasting, arithmetic, devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.hpp"

namespace oscar {

/// Number of elements of a shape; throws DataError on a negative size or on overflow.
[[nodiscard]] std::int64_t num_elements(std::span<const std::int64_t> shape);
/// "[128, 3, 64]"
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

/// An owning tensor.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;  // num_elements(shape) * size_of(dtype) bytes

  Tensor() = default;
  /// Zeros.
  Tensor(DType dtype, std::vector<std::int64_t> shape);
  /// Returns a float32 tensor with these values; their number must be that of the shape.
  [[nodiscard]] static Tensor from(std::vector<std::int64_t> shape, std::span<const float> values);
  [[nodiscard]] static Tensor from(std::vector<std::int64_t> shape, std::span<const double> values);
  [[nodiscard]] static Tensor from(std::vector<std::int64_t> shape, std::span<const std::int32_t> values);

  [[nodiscard]] std::int64_t size() const { return num_elements(shape); }
  /// Whether type, shape and bits are the same.
  [[nodiscard]] bool operator==(const Tensor&) const = default;
  /// The elements as T, whose size and kind must be those of dtype (float: kF32, double: kF64, int32_t: kI32, …).
  template <class T>
  [[nodiscard]] std::span<const T> values() const {
    return {reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T)};
  }
  template <class T>
  [[nodiscard]] std::span<T> values() {
    return {reinterpret_cast<T*>(data.data()), data.size() / sizeof(T)};
  }
  /// Converts all elements to double (exact for every float type and for int32) or to int64 (integers only; throws
  /// DataError).
  [[nodiscard]] std::vector<double> to_doubles() const;
  [[nodiscard]] std::vector<std::int64_t> to_int64() const;
};

/// Converts a tensor of activations to another activation type, rounding to nearest even.
[[nodiscard]] Tensor convert(const Tensor& source, DType dtype);

/// `count` elements of any type, converted to double (exact for every float type and for int32).
void doubles_from(DType dtype, const std::byte* data, std::size_t count, double* out);

/// Where the bytes of a tensor lie in a file.
struct TensorLocation {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;
  [[nodiscard]] bool operator==(const TensorLocation&) const = default;
};

/// A place in an open file. Negative descriptor: none.
struct FilePlace {
  int descriptor = -1;
  std::uint64_t offset = 0;
};

/// Rows of a layer as they come from a model: [num_tokens, num_heads, head_dim], one of the activation types.
struct HeadsView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t num_tokens = 0;
  int num_heads = 0;
  int head_dim = 0;
  /// Where `data` is mapped from, if it is: who copies all of it anyway reads it there faster than by page faults.
  FilePlace file = {};

  [[nodiscard]] std::int64_t bytes_per_token() const {
    return static_cast<std::int64_t>(size_of(dtype)) * num_heads * head_dim;
  }
  /// Tokens [begin, end).
  [[nodiscard]] HeadsView tokens(std::int64_t begin, std::int64_t end) const {
    const std::int64_t skipped = begin * bytes_per_token();
    return {data + skipped, dtype,    end - begin,
            num_heads,      head_dim, {file.descriptor, file.offset + static_cast<std::uint64_t>(skipped)}};
  }
  /// The row of one (token, head) as float, into `out` (head_dim values).
  void row(std::int64_t token, int head, std::span<float> out) const;
  /// Tokens [begin, begin + count) as floats (count, num_heads, head_dim).
  void token_rows(std::int64_t begin, std::int64_t count, float* out) const;
  /// Tokens [begin, begin + count) of one head, as doubles (count, head_dim).
  void head_rows(std::int64_t begin, std::int64_t count, int head, double* out) const;
  /// All rows as floats (num_tokens, num_heads, head_dim).
  [[nodiscard]] std::vector<float> floats() const;
};

/// View of a [T, H, d] tensor. Throws DataError naming `what` if it has another rank or is not of an activation type.
[[nodiscard]] HeadsView heads_view(const Tensor& tensor, const std::string& what);

/// Float rows (num_tokens, num_heads, head_dim) held by the caller.
[[nodiscard]] inline HeadsView heads_view(std::span<const float> rows, std::int64_t num_tokens, int num_heads,
                                          int head_dim) {
  return {reinterpret_cast<const std::byte*>(rows.data()), DType::kF32, num_tokens, num_heads, head_dim};
}

/// `count` square fp64 matrices of size `dim`: per-head moments, rotations, eigenvectors.
struct MatrixStack {
  int count = 0;
  int dim = 0;
  std::vector<double> data;  // (count, dim, dim)

  MatrixStack() = default;
  MatrixStack(int count_, int dim_) : count(count_), dim(dim_), data(static_cast<std::size_t>(count_) * dim_ * dim_) {}

  [[nodiscard]] std::span<double> operator[](int i) { return std::span(data).subspan(offset(i), stride()); }
  [[nodiscard]] std::span<const double> operator[](int i) const { return std::span(data).subspan(offset(i), stride()); }
  /// The matrix that serves head `h`: its own, or the only one.
  [[nodiscard]] std::span<const double> for_head(int h) const { return (*this)[count == 1 ? 0 : h]; }
  /// Makes matrices of a float32 or float64 tensor [d, d] or [n, d, d]. Throws DataError naming `what`.
  [[nodiscard]] static MatrixStack from(const Tensor& tensor, const std::string& what);
  [[nodiscard]] static MatrixStack identity(int dim);
  [[nodiscard]] MatrixStack transposed() const;
  [[nodiscard]] double trace(int i) const;
  /// Returns the matrices as float32 [n, d, d]; [d, d] if there is one matrix and `squeeze` is set.
  [[nodiscard]] Tensor to_f32(bool squeeze) const;

 private:
  [[nodiscard]] std::size_t stride() const { return static_cast<std::size_t>(dim) * dim; }
  [[nodiscard]] std::size_t offset(int i) const { return static_cast<std::size_t>(i) * stride(); }
};

}  // namespace oscar
