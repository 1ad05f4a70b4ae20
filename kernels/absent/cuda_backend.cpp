// SPDX-License-Identifier: MIT
// The CUDA backend of a build without CUDA.
#include "base/errors.hpp"
#include "kernels/backend.hpp"

namespace oscar {

std::unique_ptr<Backend> make_cuda_backend(int, Status&) {
  throw NoGpu("this build has no CUDA backend", "--device cuda",
              "use --device cpu, or build with the preset \"cuda\" on a machine with nvcc");
}

int cuda_device_count() { return 0; }

}  // namespace oscar
