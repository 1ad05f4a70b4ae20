// SPDX-License-Identifier: MIT
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "stable_torch.hpp"

namespace oscar::operators {
namespace {

using GetStream = AOTITorchError(int32_t device_index, void** stream);

GetStream* find_get_stream() {
  void* const library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);  // it is never closed: torch has it
  if (library == nullptr) fail("a tensor is on a GPU, but this torch has no libtorch_cuda.so");
  auto* const found = reinterpret_cast<GetStream*>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  if (found == nullptr) fail("this torch has no aoti_torch_get_current_cuda_stream; use torch 2.11 or later");
  return found;
}

void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, void* stream) {
  auto* const queue = static_cast<cudaStream_t>(stream);
  check_status(cudaMemcpyAsync(to, from, bytes, kind, queue), "copy");
  check_status(cudaStreamSynchronize(queue), "copy");
}

}  // namespace

void* current_stream(const Tensor& on_gpu) {
  static GetStream* const get_stream = find_get_stream();
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(get_stream(on_gpu.get_device_index(), &stream));
  return stream;
}

bool is_captured(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_status(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status), "is_captured");
  return status != cudaStreamCaptureStatusNone;
}

int compute_capability_major() {
  int device = 0, major = 0;
  check_status(cudaGetDevice(&device), "compute_capability_major");
  check_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute_capability_major");
  return major;
}

void check_status(int status, const char* name, const char* (*refused)()) {
  const auto error = static_cast<cudaError_t>(status);
  if (error == cudaSuccess) return;
  const bool is_refused = error == cudaErrorInvalidValue && refused != nullptr;
  fail(name, ": ", is_refused ? refused() : cudaGetErrorString(error));
}

void copy_from_gpu(void* host, const void* gpu, std::size_t bytes, void* stream) {
  copy(host, gpu, bytes, cudaMemcpyDeviceToHost, stream);
}

void copy_to_gpu(void* gpu, const void* host, std::size_t bytes, void* stream) {
  copy(gpu, host, bytes, cudaMemcpyHostToDevice, stream);
}

void fill_on_gpu(void* gpu, int byte, std::size_t bytes, void* stream) {
  check_status(cudaMemsetAsync(gpu, byte, bytes, static_cast<cudaStream_t>(stream)), "fill");
}

}  // namespace oscar::operators
