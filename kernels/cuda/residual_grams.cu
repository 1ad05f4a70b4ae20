// SPDX-License-Identifier: MIT
// Second moments of what the codec loses: y = x rotation in fp64, e = decode(encode(fp32(y))) - y, grams += e^T e.
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/chunks.hpp"
#include "kernels/cuda/gram_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/row_codec.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {
namespace {

__global__ void round_to_f32(const double* values, std::int64_t count, float* rounded) {
  const std::int64_t i = task_index();
  if (i < count) rounded[i] = static_cast<float>(values[i]);
}

template <class T>
__global__ void subtract(const float* decoded, const double* exact, std::int64_t count, T* residuals) {
  const std::int64_t i = task_index();
  if (i < count) residuals[i] = static_cast<T>(static_cast<double>(decoded[i]) - exact[i]);
}

/// What one slab needs. Rows are (heads, tokens, dim).
template <class T>
class ResidualSums {
 public:
  ResidualSums(const Context& context, const MatrixStack& rotation, const RowCodec& codec, int heads,
               std::int64_t slab_tokens)
      : context_(context),
        codec_(codec),
        heads_(heads),
        dim_(rotation.dim),
        shared_rotation_(rotation.count == 1),
        rotation_(context, std::span(rotation.data)),
        rows_(context, static_cast<std::size_t>(slab_tokens * heads * dim_)),
        rotated_(context, rows_.size()),
        rounded_(context, rows_.size()),
        decoded_(context, rows_.size()),
        residuals_(context, rows_.size()),
        sums_(context, heads, dim_) {}

  void add(const HeadsView& x, std::int64_t blocks, std::int64_t block_tokens) {
    const std::int64_t tokens = blocks * block_tokens, count = heads_ * tokens * dim_;
    convert_rows(context_, x, heads_, tokens, rows_.data());
    gemm(context_, {.m = tokens, .n = dim_, .k = dim_, .batch = heads_, .shared_b = shared_rotation_}, rows_.data(),
         rotation_.data(), rotated_.data());
    const unsigned grid = blocks_for(static_cast<std::size_t>(count));
    round_to_f32<<<grid, kThreads, 0, context_.stream()>>>(rotated_.data(), count, rounded_.data());
    OSCAR_CUDA_LAUNCHED("round_to_f32");
    quantize_rows(context_, dense_rows(rounded_.data(), heads_ * tokens, dim_), {&codec_, 1}, Precision::kExact,
                  {.decoded = decoded_.data()});
    subtract<<<grid, kThreads, 0, context_.stream()>>>(decoded_.data(), rotated_.data(), count, residuals_.data());
    OSCAR_CUDA_LAUNCHED("subtract");
    sums_.add(blocks, block_tokens, residuals_.data(), residuals_.data());
  }

  void add_to(MatrixStack& grams) const { sums_.add_to(grams); }

 private:
  const Context& context_;
  HistoryCodec codec_;
  int heads_, dim_;
  bool shared_rotation_;
  DeviceBuffer<double> rotation_, rows_, rotated_;
  DeviceBuffer<float> rounded_, decoded_;
  DeviceBuffer<T> residuals_;
  GramSums<T> sums_;
};

template <class T>
void add_residual_grams(const Context& context, const HeadsView& x, const MatrixStack& rotation, const RowCodec& codec,
                        MatrixStack& grams) {
  const Cut cut = cut_tokens<T>(x.num_tokens, 1, std::int64_t{x.num_heads} * x.head_dim);
  ResidualSums<T> sums(context, rotation, codec, x.num_heads, cut.slab_tokens);
  const Views<1> views{x};
  const auto pieces = pieces_of<1>({&views, 1}, cut.chunk_tokens(context, x.bytes_per_token()));
  for_each_chunk<1>(context, pieces, [&](std::size_t, const auto& chunk) {
    for_each_slab(cut, chunk,
                  [&](const auto& slab) { sums.add(slab[0], cut.blocks(slab[0].num_tokens), cut.block_tokens); });
  });
  sums.add_to(grams);
}

}  // namespace

void accumulate_residual_grams(const Context& context, HeadsView x, const MatrixStack& rotation, const RowCodec& codec,
                               MatrixStack& grams) {
  OSCAR_CHECK(x.head_dim == grams.dim && x.num_heads == grams.count && rotation.dim == grams.dim);
  OSCAR_CHECK(rotation.count == 1 || rotation.count == grams.count);
  with_product_type(context,
                    [&](auto type) { add_residual_grams<decltype(type)>(context, x, rotation, codec, grams); });
}

}  // namespace oscar::cuda
