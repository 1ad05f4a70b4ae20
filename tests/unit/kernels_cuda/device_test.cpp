// SPDX-License-Identifier: MIT
// Which device a name gives, with and without a GPU.
#include "unit/kernels_cuda/samples.hpp"

namespace oscar {

TEST_CASE("without a GPU, cuda says why and auto takes the CPU") {
  if (cuda_device_count() > 0) {
    CHECK(make_backend("auto")->description().starts_with("cuda:0, "));
    CHECK_ERROR(make_backend("cuda:99"), BackendUnavailable, "no such GPU");
    return;
  }
  CHECK(make_backend("auto")->description().starts_with("cpu, "));
  CHECK_ERROR(make_backend("cuda"), BackendUnavailable, "use --device cpu");
  CHECK_ERROR(make_backend("cuda:1"), BackendUnavailable, "use --device cpu");
}

TEST_CASE("names that are no device are refused") {
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", ""}) {
    CHECK_ERROR(make_backend(name), UsageError, "use auto, cpu, cuda or cuda:N");
  }
}

}  // namespace oscar
