// SPDX-License-Identifier: MIT
// Tensors as the arguments of oscar/int2_attention.h and its family, and what their operators have in common: they take
// tensors of one device, and compute by the kernels on CUDA, in torch's current stream, or by on_cpu.hpp.
// Errors: RuntimeError with the tensor's name.
#pragma once

#include <cmath>
#include <optional>
#include <tuple>

#include "oscar/int2_attention.h"
#include "stable_torch.hpp"

namespace oscar::operators {

/// Throws unless x is on the device of `like`, has so many dimensions and the type, and its last dimension is dense.
void check_tensor(const Tensor& x, const char* name, const Tensor& like, int64_t dims, ScalarType type);

/// The type of x. Throws unless it is float32, float16 or bfloat16.
[[nodiscard]] oscar_dtype dtype_of(const Tensor& x, const char* name);

/// A pool (pages, page size, heads, ...) of rows. Throws unless it has so many heads.
[[nodiscard]] oscar_paged_rows rows_of(const Tensor& pool, const char* name, int64_t heads);

/// x (tokens, num_kv_heads, head_dim) of bfloat16, to be read or written. Throws unless it has a row for each slot.
[[nodiscard]] oscar_bf16_rows target_of(const Tensor& x, const char* name, const Tensor& slots, int64_t heads,
                                        int64_t dim);

/// What tells a decode kernel which rows belong to which sequence: page tables (sequences, pages of each) and lengths
/// (sequences), both int32, of a history, whose pages have page_size tokens, and of windows, pools of bfloat16 rows.
struct PagedRows {
  const Tensor &pages, &lengths, &k_window, &v_window, &window_pages, &window_lengths;
};

[[nodiscard]] oscar_page_table table_of(const Tensor& pages, const char* name, const Tensor& lengths, const Tensor& q,
                                        int64_t page_size);

/// Fills what the arguments of both decode kernels have in common. q: bfloat16 (batch, ..., num_q_heads, head_dim).
template <class Args>
void fill_decode(Args& args, const Tensor& q, int64_t heads, int64_t page_size, const char* pages,
                 const PagedRows& rows, std::optional<double> softmax_scale, int64_t split_batch) {
  const int64_t dim = q.size(-1);
  check_tensor(rows.k_window, "k_window", q, 4, ScalarType::BFloat16);
  check_tensor(rows.v_window, "v_window", q, 4, ScalarType::BFloat16);
  if (!(rows.k_window.size(3) == dim && rows.v_window.size(3) == dim))
    fail("rows of the window are not ", dim, " wide");
  args.batch = static_cast<int32_t>(q.size(0)), args.num_q_heads = static_cast<int32_t>(q.size(-2));
  args.softmax_scale = static_cast<float>(softmax_scale.value_or(1 / std::sqrt(static_cast<double>(dim))));
  args.split_batch = static_cast<int32_t>(split_batch), args.q = q.data_ptr();
  args.history = table_of(rows.pages, pages, rows.lengths, q, page_size);
  args.k_window = rows_of(rows.k_window, "k_window", heads), args.v_window = rows_of(rows.v_window, "v_window", heads);
  args.window = table_of(rows.window_pages, "window_pages", rows.window_lengths, q, rows.k_window.size(1));
}

/// Computes what tensors on the device of x are for: on_gpu(stream) returns a cudaError_t.
template <class OnGpu, class OnCpu>
void compute(const Tensor& x, const char* name, const OnGpu& on_gpu, const OnCpu& on_cpu) {
  if (x.is_cpu()) return on_cpu();
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check_status(on_gpu(current_stream(x)), name, oscar_last_error);
}

/// Float32 of the shape of x; sizes that torch.compile has no numbers for stay symbols, since torch alone reads them.
[[nodiscard]] Tensor empty_float_like(const Tensor& x);

/// Operators of a decode kernel, made of what turns their tensors into a Call: args, kName, workspace_bytes(),
/// on_gpu(stream) and on_cpu().
template <auto call_of>
struct Decode;
template <class Call, class... More, Call (*call_of)(const Tensor& q, More...)>
struct Decode<call_of> {
  static int64_t workspace(const Tensor& q, More... more) {
    const torch::stable::accelerator::DeviceGuard guard(q.get_device_index());
    return bytes_of(call_of(q, more...));
  }

  /// out float32 of q's shape, lse float32 without the last dimension. workspace: bytes that were zeroed once, reused
  /// by every call of one stream; without it each call allocates its own, and on the CPU there is none.
  static std::tuple<Tensor, Tensor> run(const Tensor& q, More... more, const std::optional<Tensor>& workspace) {
    Call call = call_of(q, more...);
    const auto sizes = q.sizes();
    const Tensor out = torch::stable::new_empty(q, sizes, ScalarType::Float);
    const Tensor lse = torch::stable::new_empty(q, {sizes.data(), sizes.size() - 1}, ScalarType::Float);
    call.args.out = out.mutable_data_ptr<float>(), call.args.lse = lse.mutable_data_ptr<float>();
    std::optional<Tensor> space = workspace;
    const auto on_gpu = [&](void* stream) {
      if (!space) space = torch::stable::new_zeros(q, {bytes_of(call)}, ScalarType::Byte);
      check_tensor(*space, "workspace", q, 1, ScalarType::Byte);
      call.args.workspace = space->data_ptr(), call.args.workspace_bytes = static_cast<std::size_t>(space->numel());
      return call.on_gpu(stream);
    };
    compute(q, Call::kName, on_gpu, [&] { call.on_cpu(); });
    return {out, lse};
  }

  static std::tuple<Tensor, Tensor> shapes(const Tensor& q, More..., const std::optional<Tensor>&) {
    return {empty_float_like(q), empty_float_like(torch::stable::select(q, -1, 0))};
  }

 private:
  static int64_t bytes_of(const Call& call) {
    const auto bytes = static_cast<int64_t>(call.workspace_bytes());
    if (bytes <= 0) fail(Call::kName, ": ", oscar_last_error());
    return bytes;
  }
};

/// An operator of the same arguments for tensors without data, which it would write.
template <auto operation>
struct Nothing;
template <class... Arguments, void (*operation)(Arguments...)>
struct Nothing<operation> {
  static void run(Arguments...) {}
};

}  // namespace oscar::operators
