// SPDX-License-Identifier: MIT
// Which device a name gives, with and without a GPU.
#include "unit/kernels_cuda/samples.hpp"

namespace oscar {

namespace {

std::unique_ptr<Backend> backend_named(const std::string& device) {
  static Status silent;
  return make_backend(device, silent);
}

}  // namespace

TEST_CASE("without a GPU, cuda says why and auto takes the CPU") {
  if (cuda_device_count() > 0) {
    CHECK(backend_named("auto")->description().starts_with("cuda:0, "));
    CHECK_ERROR(backend_named("cuda:99"), BackendUnavailable, "no such GPU");
    return;
  }
  CHECK(backend_named("auto")->description().starts_with("cpu, "));
  CHECK_ERROR(backend_named("cuda"), BackendUnavailable, "use --device cpu");
  CHECK_ERROR(backend_named("cuda:1"), BackendUnavailable, "use --device cpu");
}

TEST_CASE("names that are no device are refused") {
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", ""}) {
    CHECK_ERROR(backend_named(name), UsageError, "use auto, cpu, cuda or cuda:N");
  }
}

}  // namespace oscar
