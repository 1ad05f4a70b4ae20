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

}  // namespace

void* current_stream(const Tensor& on_gpu) {
  static GetStream* const get_stream = find_get_stream();
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(get_stream(on_gpu.get_device_index(), &stream));
  return stream;
}

void check_status(int status, const char* name, const char* (*refused)()) {
  const auto error = static_cast<cudaError_t>(status);
  if (error == cudaSuccess) return;
  const bool is_refused = error == cudaErrorInvalidValue && refused != nullptr;
  fail(name, ": ", is_refused ? refused() : cudaGetErrorString(error));
}

}  // namespace oscar::operators
