// SPDX-License-Identifier: MIT
// What the CUDA plug-in offers to loader.cpp.
#pragma once

#include <memory>

#include "kernels/backend.hpp"

namespace oscar {

class CudaPlugin {
 public:
  virtual ~CudaPlugin() = default;
  /// 0 if the driver is missing, too old, or sees no GPU.
  [[nodiscard]] virtual int device_count() const = 0;
  /// Throws BackendUnavailable that says what the driver answered, or why this GPU cannot be used.
  [[nodiscard]] virtual std::unique_ptr<Backend> make_backend(int ordinal, Status& status) const = 0;
};

}  // namespace oscar

/// What the program asks the plug-in for. Its other exports are the C functions of kernels/include/oscar.
extern "C" const oscar::CudaPlugin* oscar_cuda_plugin();
