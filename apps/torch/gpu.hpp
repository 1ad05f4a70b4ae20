// SPDX-License-Identifier: MIT
// What the operators need of the CUDA runtime and of torch's streams. Errors: RuntimeError that begins with `name`.
#pragma once

#include <cstddef>

#include "stable_torch.hpp"

namespace oscar::operators {

/// torch's current stream on the device of a CUDA tensor: a cudaStream_t. libtorch_cuda is asked for it by name, since
/// this library is also loaded where torch has no CUDA.
[[nodiscard]] void* current_stream(const Tensor& on_gpu);
[[nodiscard]] bool is_captured(void* stream);
/// Returns the major compute capability of the current device.
[[nodiscard]] int compute_capability_major();
/// status: a cudaError_t; refused: says why, if it is cudaErrorInvalidValue; null: the runtime's own text.
void check_status(int status, const char* name, const char* (*refused)() = nullptr);

/// Copies in the stream, and waits for it.
void copy_from_gpu(void* host, const void* gpu, std::size_t bytes, void* stream);
void copy_to_gpu(void* gpu, const void* host, std::size_t bytes, void* stream);
void fill_on_gpu(void* gpu, int byte, std::size_t bytes, void* stream);

}  // namespace oscar::operators
