// SPDX-License-Identifier: MIT
#include "kernels/backend.hpp"

#include <charconv>

namespace oscar {
namespace {

/// "cuda" -> 0, "cuda:3" -> 3, anything else -> -1.
int cuda_ordinal(const std::string& device) {
  if (device == "cuda") return 0;
  if (!device.starts_with("cuda:")) return -1;
  int ordinal = -1;
  const char* end = device.data() + device.size();
  const auto [stop, error] = std::from_chars(device.data() + 5, end, ordinal);
  return error == std::errc() && stop == end ? ordinal : -1;
}

/// A GPU that cannot be used is worth a notice; a machine without one is not.
std::unique_ptr<Backend> best_backend(Status& status) {
  try {
    return make_cuda_backend(0, status);
  } catch (const NoGpu&) {
    return make_cpu_backend();
  } catch (const BackendUnavailable& error) {
    status.notice("running on the CPU, since the GPU cannot be used: " + std::string(error.what()));
    return make_cpu_backend();
  }
}

}  // namespace

std::unique_ptr<Backend> make_backend(const std::string& device, Status& status) {
  if (device == "cpu") return make_cpu_backend();
  if (device == "auto") return best_backend(status);
  const int ordinal = cuda_ordinal(device);
  if (ordinal < 0) throw UsageError("unknown device \"" + device + "\"", "--device", "use auto, cpu, cuda or cuda:N");
  return make_cuda_backend(ordinal, status);
}

}  // namespace oscar
