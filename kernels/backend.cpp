// SPDX-License-Identifier: MIT
#include "kernels/backend.hpp"

#include <charconv>

#include "base/errors.hpp"

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

}  // namespace

std::unique_ptr<Backend> make_backend(const std::string& device) {
  if (device == "cpu") return make_cpu_backend();
  if (device == "auto") return cuda_device_count() > 0 ? make_cuda_backend(0) : make_cpu_backend();
  const int ordinal = cuda_ordinal(device);
  if (ordinal < 0) throw UsageError("unknown device \"" + device + "\"", "--device", "use auto, cpu, cuda or cuda:N");
  return make_cuda_backend(ordinal);
}

}  // namespace oscar
