// SPDX-License-Identifier: MIT
// What attend() and compare_attention() share: keys and values of one KV head in both precisions on the GPU, and the
// products of a block of queries with them. Each product is done for both precisions over all keys; mixed_softmax()
// keeps one of each pair. T is float (speed) or double (reference).
#pragma once

#include <cmath>
#include <vector>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {

/// The matrix of one KV head as restore_outputs() needs it; empty if there is none.
template <class T>
[[nodiscard]] DeviceBuffer<T> restoring_matrix(const Context& context, const MixedAttention& mixed, int kv_head) {
  if (mixed.native_from_rotated == nullptr) return {};
  const std::span<const double> matrix = mixed.native_from_rotated->for_head(kv_head);
  const std::vector<T> values(matrix.begin(), matrix.end());
  DeviceBuffer<T> device{context, std::span<const T>(values)};
  if (mixed.precision == Precision::kServing) round_to_bf16(context, device);
  return device;
}

template <class T>
struct MixedHead {
  std::int64_t dim, value_dim;
  Precision precision;
  DeviceBuffer<T> window_k, history_k, window_v, history_v, native_from_rotated;

  MixedHead(const Context& context, const MixedAttention& mixed, int kv_head)
      : dim(mixed.window_k.head_dim),
        value_dim(mixed.window_v.head_dim),
        precision(mixed.precision),
        window_k(upload_rows<T>(context, mixed.window_k, {kv_head, 1, 1})),
        history_k(upload_rows<T>(context, mixed.history_k, {kv_head, 1, 1})),
        window_v(upload_rows<T>(context, mixed.window_v, {kv_head, 1, 1})),
        history_v(upload_rows<T>(context, mixed.history_v, {kv_head, 1, 1})),
        native_from_rotated(restoring_matrix<T>(context, mixed, kv_head)) {}

  /// Scores (rows, keys) of the queries q (rows, dim) with the keys in both precisions.
  void scores(const Context& context, const T* q, std::int64_t rows, std::int64_t keys, T* window, T* history) const {
    const Gemm shape{
        .m = rows, .n = keys, .k = dim, .b = Transpose::kYes, .alpha = 1 / std::sqrt(static_cast<double>(dim))};
    gemm(context, shape, q, window_k.data(), window);
    gemm(context, shape, q, history_k.data(), history);
  }

  /// Native outputs (rows, value_dim) from the weights of both precisions (rows, keys). Serving rounds the outputs to
  /// bfloat16 before they are mapped back; the result stays unrounded.
  [[nodiscard]] DeviceBuffer<T> outputs(const Context& context, const T* window, const T* history, std::int64_t rows,
                                        std::int64_t keys) const {
    DeviceBuffer<T> rotated(context, static_cast<std::size_t>(rows * value_dim));
    gemm(context, {.m = rows, .n = value_dim, .k = keys}, window, window_v.data(), rotated.data());
    gemm(context, {.m = rows, .n = value_dim, .k = keys, .accumulate = true}, history, history_v.data(),
         rotated.data());
    if (precision == Precision::kServing) round_to_bf16(context, rotated);
    if (native_from_rotated.size() == 0) return rotated;
    DeviceBuffer<T> native(context, rotated.size());
    gemm(context, {.m = rows, .n = value_dim, .k = value_dim}, rotated.data(), native_from_rotated.data(),
         native.data());
    return native;
  }
};

}  // namespace oscar::cuda
