// SPDX-License-Identifier: MIT
#include "kernels/cuda/held_rows.hpp"

#include <algorithm>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {
namespace {

/// Values that are rotated at a time: 32 MiB of doubles.
constexpr std::int64_t kValuesAtATime = std::int64_t{1} << 22;

}  // namespace

Rotation::Rotation(const Context& context, const MatrixStack* matrices, std::span<const double> mean,
                   Precision precision) {
  if (matrices == nullptr) return;
  count_ = matrices->count;
  dim_ = matrices->dim;
  exact_ = DeviceBuffer<double>(context, std::span(matrices->data));
  if (!mean.empty()) mean_ = DeviceBuffer<double>(context, mean);
  if (precision == Precision::kExact) return;
  rounded_ = DeviceBuffer<double>(context, exact_.size());
  OSCAR_CUDA_TRY(cudaMemcpyAsync(rounded_.data(), exact_.data(), exact_.size() * sizeof(double),
                                 cudaMemcpyDeviceToDevice, context.stream()));
  round_to_bf16(context, rounded_);
}

const double* Rotation::matrix(int kv_head, Precision precision) const {
  const DeviceBuffer<double>& matrices = precision == Precision::kServing ? rounded_ : exact_;
  return matrices.data() + (count_ == 1 ? 0 : kv_head * dim_ * dim_);
}

const double* Rotation::mean(int kv_head) const { return mean_.size() == 0 ? nullptr : mean_.data() + kv_head * dim_; }

HeldRows::HeldRows(const Context& context, const HeadsView& x, DeviceBuffer<std::byte> native, int kv_heads,
                   const Rotation& rotation, Precision precision)
    : dtype_(x.dtype),
      stored_dtype_(precision == Precision::kServing ? DType::kBF16 : DType::kF32),
      kv_heads_(kv_heads),
      g_(x.num_heads / kv_heads),
      dim_(x.head_dim),
      tokens_(x.num_tokens),
      native_(std::move(native)),
      stored_(context, size(everything()) * size_of(stored_dtype_)) {
  OSCAR_CHECK(is_activation_dtype(x.dtype));
  const std::int64_t step = std::max<std::int64_t>(kValuesAtATime / (std::int64_t{kv_heads_} * g_ * dim_), 1);
  for (std::int64_t first = 0; first < tokens_; first += step) {
    const Part part{0, kv_heads_, first, std::min(step, tokens_ - first)};
    narrow(context, rotated(context, part, rotation, precision).data(), stored(part));
  }
}

void HeldRows::set_history(const Context& context, const HeadsView& decoded, DeviceBuffer<std::byte> bytes) {
  const Rotation none(context, nullptr, {}, Precision::kExact);
  history_ = std::make_unique<HeldRows>(context, decoded, std::move(bytes), kv_heads_, none, Precision::kExact);
}

RowsView HeldRows::native(const Part& part) const {
  const std::int64_t width = std::int64_t{g_} * dim_;
  const std::int64_t first = (part.first_token * kv_heads_ + part.first_head) * width;
  return {.values = native_.data() + first * static_cast<std::int64_t>(size_of(dtype_)),
          .dtype = dtype_,
          .dim = static_cast<int>(width),
          .heads = part.heads,
          .rows_per_head = part.tokens,
          .head_stride = 1,
          .row_stride = kv_heads_};
}

RowsView HeldRows::stored(const Part& part) const {
  const std::int64_t first = (part.first_head * tokens_ + part.first_token) * g_ * dim_;
  return {.values = stored_.data() + first * static_cast<std::int64_t>(size_of(stored_dtype_)),
          .dtype = stored_dtype_,
          .dim = dim_,
          .heads = part.heads,
          .rows_per_head = part.tokens * g_,
          .head_stride = tokens_ * g_};
}

DeviceBuffer<double> HeldRows::rotated(const Context& context, const Part& part, const Rotation& rotation,
                                       Precision precision) const {
  const std::int64_t rows_per_head = part.tokens * g_;
  DeviceBuffer<double> rows(context, size(part));
  const double* const mean = rotation.mean(part.first_head);
  widen(context, native(part), mean == nullptr ? precision : Precision::kExact, rows.data(), rows_per_head * dim_);
  if (!rotation.exists()) return rows;
  if (mean != nullptr) subtract_mean(context, rows, mean, rows_per_head, dim_, precision);
  DeviceBuffer<double> rotated(context, rows.size());
  const std::int64_t batch = rotation.count() == 1 ? 1 : part.heads;
  gemm(context, {.m = part.heads * rows_per_head / batch, .n = dim_, .k = dim_, .batch = batch}, rows.data(),
       rotation.matrix(part.first_head, precision), rotated.data());
  return rotated;
}

}  // namespace oscar::cuda
