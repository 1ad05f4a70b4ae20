// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/observe_rows.hpp"
#include "observe_state.hpp"

namespace oscar::tap {
namespace {

constexpr int64_t kLeastWorkspace = 8192;  // tokens

ObservedRows rows_of(const Tensor& x) {
  return {x.const_data_ptr(), x.dim() == 4 ? x.stride(0) : 0, x.stride(-3),
          x.stride(-2),       static_cast<int>(x.size(-2)),   static_cast<int>(x.size(-1))};
}

ObserveCall call_of(const LayerState& layer, const Rows& rows, int64_t seed) {
  ObserveCall call;
  call.bfloat16 = rows.k.scalar_type() == at::kBFloat16;
  call.batch = rows.k.dim() == 4 ? static_cast<int>(rows.k.size(0)) : 1;
  call.tokens = static_cast<int>(rows.k.size(-3));
  call.q = rows_of(rows.q), call.k = rows_of(rows.k), call.v = rows_of(rows.v);
  if (rows.mask) {
    call.mask = rows.mask->const_data_ptr<bool>();
    call.mask_batch_stride = rows.mask->dim() == 2 ? rows.mask->stride(0) : 0;
    call.mask_token_stride = rows.mask->stride(-1);
  }
  call.sequences = call.batch;
  if (rows.cu_seqlens) {
    call.cu_seqlens = rows.cu_seqlens->const_data_ptr();
    call.cu_seqlens_64 = rows.cu_seqlens->scalar_type() == at::kLong;
    call.boundaries = static_cast<int>(rows.cu_seqlens->size(0));
    call.sequences = call.boundaries - 1;
  }
  call.query_factor = rows.query_scale * rows.query_scale;
  call.qqt = layer.qqt.mutable_data_ptr<double>(), call.ktk = layer.ktk.mutable_data_ptr<double>();
  call.vtv = layer.vtv.mutable_data_ptr<double>(), call.key_sums = layer.key_sums.mutable_data_ptr<double>();
  call.counts = layer.counts.mutable_data_ptr<int64_t>(), call.owners = layer.owners.mutable_data_ptr<int64_t>();
  call.k_rows = layer.k_rows.mutable_data_ptr(), call.v_rows = layer.v_rows.mutable_data_ptr();
  call.sample = layer.sample(), call.seed = static_cast<std::uint32_t>(seed);
  return call;
}

/// Room for so many tokens, which stays where it is.
int64_t* workspace_of(LayerState& layer, int64_t tokens) {
  if (layer.workspaces.empty() || layer.workspaces.back().size(0) < tokens) {
    TORCH_CHECK(!is_capturing(layer.counts), "observe: observe ", tokens,
                " tokens at once before a CUDA graph of as many is captured");
    const c10::InferenceMode off(false);
    const int64_t last = layer.workspaces.empty() ? kLeastWorkspace : 2 * layer.workspaces.back().size(0);
    layer.workspaces.push_back(at::empty({std::max(tokens, last)}, layer.counts.options()));
  }
  return layer.workspaces.back().mutable_data_ptr<int64_t>();
}

bool has_tensor_cores() {
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c10::cuda::current_device()));
  return major >= 8;  // of bfloat16
}

bool dense(const Rows& rows) {
  return rows.q.stride(-1) == 1 && rows.k.stride(-1) == 1 && rows.v.stride(-1) == 1 &&
         (!rows.cu_seqlens || rows.cu_seqlens->is_contiguous());
}

}  // namespace

bool is_capturing(const Tensor& k) {
  return k.is_cuda() && c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

bool add_rows_on_gpu(LayerState& layer, const Rows& rows, int64_t seed) {
  if (!rows.k.is_cuda() || rows.k.scalar_type() == at::kFloat || !dense(rows)) return false;
  const c10::cuda::CUDAGuard guard(rows.k.device());
  ObserveCall call = call_of(layer, rows, seed);
  if (!can_observe(call) || !has_tensor_cores()) return false;
  call.numbers = workspace_of(layer, int64_t{call.batch} * call.tokens);
  const auto status = static_cast<cudaError_t>(observe_rows(call, c10::cuda::getCurrentCUDAStream().stream()));
  TORCH_CHECK(status == cudaSuccess, "observe: ", cudaGetErrorString(status));
  return true;
}

}  // namespace oscar::tap
