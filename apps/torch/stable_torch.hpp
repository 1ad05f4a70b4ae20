// SPDX-License-Identifier: MIT
// What the operators use of torch: its stable C++ interface, so that one library loads into torch 2.11 and every later
// version. Of libtorch that needs C functions alone (aoti_torch_*, torch_*); a test looks at the library for others.
// And what they need of the CUDA runtime (gpu.cpp, without_gpu.cpp). Errors: RuntimeError that begins with `name`.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <string>

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

}  // namespace oscar::operators
