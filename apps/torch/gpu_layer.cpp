// SPDX-License-Identifier: MIT
#include <array>

#include "kernels/observe_rows.hpp"
#include "observe_state.hpp"
#include "stable_torch.hpp"

namespace oscar::operators {
namespace {

using torch::stable::accelerator::DeviceGuard;

constexpr std::int64_t kLeastWorkspace = 8192;  // tokens

ObservedRows observed_rows(const Tensor& x) {
  return {x.const_data_ptr(), x.dim() == 4 ? x.stride(0) : 0, x.stride(-3),
          x.stride(-2),       static_cast<int>(x.size(-2)),   static_cast<int>(x.size(-1))};
}

std::size_t bytes_of(const Tensor& x) { return static_cast<std::size_t>(x.numel()) * x.element_size(); }

/// Of (heads, dim, dim) of which the upper triangles are right.
MatrixStack symmetric_from(const Tensor& sums, void* stream) {
  MatrixStack out(static_cast<int>(sums.size(0)), static_cast<int>(sums.size(1)));
  copy_from_gpu(out.data.data(), sums.const_data_ptr(), bytes_of(sums), stream);
  const auto dim = static_cast<std::size_t>(out.dim);
  for (int h = 0; h < out.count; ++h) {
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < i; ++j) out[h][i * dim + j] = out[h][j * dim + i];
    }
  }
  return out;
}

class KernelLayer final : public GpuLayer {
 public:
  /// like: a tensor of the type and on the GPU of the rows.
  KernelLayer(const LayerShape& shape, const Tensor& like) : shape_(shape), like_(like) {
    const auto zeros = [&](std::initializer_list<std::int64_t> sizes, ScalarType type) {
      return torch::stable::new_zeros(like, sizes, type);
    };
    const std::int64_t heads = shape.num_kv_heads, dk = shape.key_dim, dv = shape.value_dim, n = shape.sample_size;
    qqt_ = zeros({heads, dk, dk}, ScalarType::Double), ktk_ = zeros({heads, dk, dk}, ScalarType::Double);
    vtv_ = zeros({heads, dv, dv}, ScalarType::Double), key_sums_ = zeros({heads, dk}, ScalarType::Double);
    counts_ = zeros({2}, ScalarType::Long), owners_ = zeros({n}, ScalarType::Long);
    k_rows_ = torch::stable::new_empty(like, {n, heads, dk}), v_rows_ = torch::stable::new_empty(like, {n, heads, dv});
    clear();
  }

  void add(const Rows& rows, std::int64_t seed) override {
    const DeviceGuard guard(like_.get_device_index());
    Rows own = rows;
    ObserveCall call = call_of(own, seed);
    if (!is_dense(own) || !can_observe(call)) {  // views whose rows the kernels cannot read as they lie
      for (Tensor* x : {&own.q, &own.k, &own.v}) *x = torch::stable::contiguous(torch::stable::clone(*x));
      call = call_of(own, seed);
      if (!can_observe(call)) fail("observe: ", call.tokens, " tokens are too many for one call; give fewer at once");
    }
    call.numbers = workspace(std::int64_t{call.batch} * call.tokens);
    check_status(observe_rows(call, current_stream(like_)), "observe");
  }

  LayerSums read() const override {
    const DeviceGuard guard(like_.get_device_index());
    void* const stream = current_stream(like_);
    LayerSums out(shape_);
    out.qqt = symmetric_from(qqt_, stream), out.ktk = symmetric_from(ktk_, stream);
    out.vtv = symmetric_from(vtv_, stream);
    copy_from_gpu(out.key_sums.data(), key_sums_.const_data_ptr(), bytes_of(key_sums_), stream);
    std::array<std::int64_t, 2> counts{};
    copy_from_gpu(counts.data(), counts_.const_data_ptr(), bytes_of(counts_), stream);
    out.tokens = counts[0], out.sequences = counts[1];
    for (const auto& [rows, from, view] : {std::tuple{&out.k_rows, &k_rows_, out.sampled_keys()},
                                           std::tuple{&out.v_rows, &v_rows_, out.sampled_values()}}) {
      rows->resize(static_cast<std::size_t>(view.num_tokens * view.bytes_per_token()));
      copy_from_gpu(rows->data(), from->const_data_ptr(), rows->size(), stream);
    }
    return out;
  }

  void write(const LayerSums& sums) override {
    const DeviceGuard guard(like_.get_device_index());
    void* const stream = current_stream(like_);
    copy_to_gpu(qqt_.mutable_data_ptr(), sums.qqt.data.data(), bytes_of(qqt_), stream);
    copy_to_gpu(ktk_.mutable_data_ptr(), sums.ktk.data.data(), bytes_of(ktk_), stream);
    copy_to_gpu(vtv_.mutable_data_ptr(), sums.vtv.data.data(), bytes_of(vtv_), stream);
    copy_to_gpu(key_sums_.mutable_data_ptr(), sums.key_sums.data(), bytes_of(key_sums_), stream);
    const std::array counts{sums.tokens, sums.sequences};
    copy_to_gpu(counts_.mutable_data_ptr(), counts.data(), bytes_of(counts_), stream);
    copy_to_gpu(k_rows_.mutable_data_ptr(), sums.k_rows.data(), sums.k_rows.size(), stream);
    copy_to_gpu(v_rows_.mutable_data_ptr(), sums.v_rows.data(), sums.v_rows.size(), stream);
    // Older than any token to come.
    const std::vector<std::int64_t> owners(static_cast<std::size_t>(shape_.sample_size), sums.tokens - 1);
    copy_to_gpu(owners_.mutable_data_ptr(), owners.data(), bytes_of(owners_), stream);
  }

  void clear() override {
    const DeviceGuard guard(like_.get_device_index());
    for (const Tensor* sums : {&qqt_, &ktk_, &vtv_, &key_sums_, &counts_}) {
      fill_on_gpu(sums->mutable_data_ptr(), 0, bytes_of(*sums), current_stream(like_));
    }
    fill_on_gpu(owners_.mutable_data_ptr(), 0xff, bytes_of(owners_), current_stream(like_));  // -1: nobody
  }

  std::unique_ptr<GpuLayer> another() const override {
    const DeviceGuard guard(like_.get_device_index());
    return std::make_unique<KernelLayer>(shape_, like_);
  }

 private:
  static bool is_dense(const Rows& rows) {
    return rows.q.stride(-1) == 1 && rows.k.stride(-1) == 1 && rows.v.stride(-1) == 1;
  }

  ObserveCall call_of(const Rows& rows, std::int64_t seed) const {
    ObserveCall call;
    call.bfloat16 = shape_.dtype == DType::kBF16;
    call.batch = static_cast<int>(rows.batch()), call.tokens = static_cast<int>(rows.k.size(-3));
    call.q = observed_rows(rows.q), call.k = observed_rows(rows.k), call.v = observed_rows(rows.v);
    if (rows.mask) {
      call.mask = rows.mask->const_data_ptr<bool>();
      call.mask_batch_stride = rows.mask->dim() == 2 ? rows.mask->stride(0) : 0;
      call.mask_token_stride = rows.mask->stride(-1);
    }
    if (rows.cu_seqlens) {
      call.cu_seqlens = rows.cu_seqlens->const_data_ptr();
      call.cu_seqlens_64 = rows.cu_seqlens->scalar_type() == ScalarType::Long;
      call.boundaries = static_cast<int>(rows.cu_seqlens->size(0));
    }
    call.sequences = rows.sequences(), call.query_factor = rows.query_scale * rows.query_scale;
    call.qqt = qqt_.mutable_data_ptr<double>(), call.ktk = ktk_.mutable_data_ptr<double>();
    call.vtv = vtv_.mutable_data_ptr<double>(), call.key_sums = key_sums_.mutable_data_ptr<double>();
    call.counts = counts_.mutable_data_ptr<std::int64_t>(), call.owners = owners_.mutable_data_ptr<std::int64_t>();
    call.k_rows = k_rows_.mutable_data_ptr(), call.v_rows = v_rows_.mutable_data_ptr();
    call.sample = shape_.sample_size, call.seed = static_cast<std::uint32_t>(seed);
    return call;
  }

  /// Room for so many tokens, which stays where it is.
  std::int64_t* workspace(std::int64_t tokens) {
    if (workspaces_.empty() || workspaces_.back().size(0) < tokens) {
      if (is_capturing(like_)) {
        fail("observe: observe ", tokens, " tokens at once before a CUDA graph of as many is captured");
      }
      const std::int64_t last = workspaces_.empty() ? kLeastWorkspace : 2 * workspaces_.back().size(0);
      workspaces_.push_back(torch::stable::new_empty(like_, {std::max(tokens, last)}, ScalarType::Long));
    }
    return workspaces_.back().mutable_data_ptr<std::int64_t>();
  }

  LayerShape shape_;
  Tensor like_;                      // of no elements
  Tensor qqt_, ktk_, vtv_;           // fp64 (num_kv_heads, dim, dim): the upper triangles are right
  Tensor key_sums_, counts_;         // fp64 (num_kv_heads, key_dim); int64: tokens, sequences
  Tensor k_rows_, v_rows_, owners_;  // (sample, num_kv_heads, dim), and which token, counted from 0, lies in a row
  /// Scratch memory. The last is in use; graphs that were captured may refer to the others.
  std::vector<Tensor> workspaces_;
};

}  // namespace

std::unique_ptr<GpuLayer> make_gpu_layer(const LayerShape& shape, const Tensor& k) {
  const auto is_taken = [](int dim) { return dim % 16 == 0 && dim <= 256; };
  if (!k.is_cuda() || shape.dtype == DType::kF32 || !is_taken(shape.key_dim) || !is_taken(shape.value_dim))
    return nullptr;
  const DeviceGuard guard(k.get_device_index());
  if (compute_capability_major() < 8) return nullptr;  // no tensor cores for bfloat16
  return std::make_unique<KernelLayer>(shape, torch::stable::new_empty(k, {0}));
}

bool is_capturing(const Tensor& k) { return k.is_cuda() && is_captured(current_stream(k)); }

}  // namespace oscar::operators
