// SPDX-License-Identifier: MIT
// What the operators use of torch: its stable C++ interface, so that one library loads into torch 2.11 and every later
// version. Of libtorch that needs C functions alone (aoti_torch_*, torch_*); a test looks at the library for others.
// It also has what they need of the CUDA runtime (gpu.cpp, without_gpu.cpp). Errors: RuntimeError that begins with
// `name`.
//
// Tensors as the arguments of the C functions of kernels/include/oscar, and what their operators have in common: they
// take tensors of one device, and compute by the kernels on CUDA, in torch's current stream, or by on_cpu.hpp. Errors:
// RuntimeError with the tensor's name.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/ScalarType.h>

#include <sstream>
#include <stdexcept>
#include <string>

#include "oscar/coded_attention.h"
#include "tensor/tensor.hpp"

namespace oscar::operators {

using torch::headeronly::DeviceType;
using torch::headeronly::ScalarType;
using torch::stable::Device;
using torch::stable::Tensor;

/// Throws RuntimeError, as Python sees it, with the parts as its text.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

/// "cpu", "cuda:0", "meta".
[[nodiscard]] inline std::string text_of(const Device& device) {
  const DeviceType type = device.type();
  if (type == DeviceType::CPU) return "cpu";
  if (type == DeviceType::Meta) return "meta";
  const std::string name = type == DeviceType::CUDA ? "cuda" : "device type " + std::to_string(static_cast<int>(type));
  return device.has_index() ? name + ":" + std::to_string(device.index()) : name;
}

/// "[2, 3]"
[[nodiscard]] inline std::string shape_of(const Tensor& x) {
  const auto sizes = x.sizes();
  return shape_text({sizes.data(), sizes.size()});
}

/// torch's current stream on the device of a CUDA tensor: a cudaStream_t. libtorch_cuda is asked for it by name, since
/// this library is also loaded where torch has no CUDA.
[[nodiscard]] void* current_stream(const Tensor& on_gpu);
/// status: a cudaError_t; refused: says why, if it is cudaErrorInvalidValue; null: the runtime's own text.
void check_status(int status, const char* name, const char* (*refused)() = nullptr);

/// Throws unless x is on the device of `like`, has so many dimensions and the type, and its last dimension is dense.
void check_tensor(const Tensor& x, const char* name, const Tensor& like, int64_t dims, ScalarType type);

/// A pool (pages, page size, heads, ...) of rows. Throws unless it has so many heads.
[[nodiscard]] oscar_paged_rows rows_of(const Tensor& pool, const char* name, int64_t heads);

/// x (tokens, num_kv_heads, head_dim) of bfloat16, to be read or written. Throws unless it has a row for each slot.
[[nodiscard]] oscar_bf16_rows target_of(const Tensor& x, const char* name, const Tensor& slots, int64_t heads,
                                        int64_t dim);

/// A page table (sequences, pages of each) and lengths (sequences), both int32, of pages of `pool` (pages, page size,
/// ...). On the CPU throws unless there is a page for each token.
[[nodiscard]] oscar_page_table table_of(const Tensor& pages, const char* name, const Tensor& lengths, const Tensor& q,
                                        const Tensor& pool);

/// On the CPU throws unless the slots (tokens) of int32 are all of the first `end`, or negative.
void check_slots(const Tensor& slots, int64_t end);

/// Computes what tensors on the device of x are for: on_gpu(stream) returns a cudaError_t.
template <class OnGpu, class OnCpu>
void compute(const Tensor& x, const char* name, const OnGpu& on_gpu, const OnCpu& on_cpu) {
  if (x.is_cpu()) return on_cpu();
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  check_status(on_gpu(current_stream(x)), name, oscar_last_error);
}

/// An operator of the same arguments for tensors without data, which it would write.
template <auto operation>
struct Nothing;
template <class... Arguments, void (*operation)(Arguments...)>
struct Nothing<operation> {
  static void run(Arguments...) {}
};

}  // namespace oscar::operators
