// SPDX-License-Identifier: MIT
// The CUDA backend as the program sees it: a plug-in that is opened only where a driver is.
#include <filesystem>

#include "base/errors.hpp"
#include "base/plugin.hpp"
#include "kernels/backend.hpp"
#include "kernels/cuda/plugin.hpp"

namespace oscar {
namespace {

/// Linux's driver, or that of Windows under it. Costs microseconds, opening the plug-in tens of milliseconds.
bool has_driver() { return std::filesystem::exists("/dev/nvidiactl") || std::filesystem::exists("/dev/dxg"); }

const CudaPlugin& plugin() {
  using Factory = const CudaPlugin*();
  static const CudaPlugin* const opened = reinterpret_cast<Factory*>(plugin_symbol(
      "cuda", "oscar_cuda_plugin", "install the CUDA runtime libraries (cuBLAS and cuSOLVER), or use --device cpu"))();
  return *opened;
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int ordinal, Status& status) {
  if (!has_driver()) {
    throw NoGpu("this machine has no NVIDIA driver (/dev/nvidiactl is not there)", "--device cuda",
                "use --device cpu, or install the driver");
  }
  return plugin().make_backend(ordinal, status);
}

int cuda_device_count() {
  if (!has_driver()) return 0;
  try {
    return plugin().device_count();
  } catch (const BackendUnavailable&) {
    return 0;  // the plug-in or a library that it needs is missing; make_cuda_backend() says which
  }
}

}  // namespace oscar
