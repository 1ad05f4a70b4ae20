// SPDX-License-Identifier: MIT
#include "unit/kernels_cuda/gpu.hpp"

#include <algorithm>
#include <cstdlib>

namespace oscar::test {

std::unique_ptr<Backend> gpu_or_skip() {
  static Status silent;
  if (cuda_device_count() > 0) return make_backend("cuda", silent);
  skip_case("needs an NVIDIA GPU and a build with CUDA");
  return nullptr;
}

void Notices::notice(const std::string& text) {
  const std::lock_guard lock(mutex_);
  texts_.push_back(text);
}

bool Notices::mention(const std::string& fragment) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(texts_.begin(), texts_.end(),
                     [&](const std::string& text) { return text.find(fragment) != std::string::npos; });
}

std::unique_ptr<Backend> gpu_with(const char* variable, const std::string& value, Status& status) {
  ::setenv(variable, value.c_str(), 1);
  std::unique_ptr<Backend> backend = make_backend("cuda", status);
  ::unsetenv(variable);
  return backend;
}

}  // namespace oscar::test
