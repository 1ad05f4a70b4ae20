// SPDX-License-Identifier: MIT
// What the tests of the CUDA backend share beside tests/conformance: the GPU, and what it had to say.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "conformance/operations.hpp"

namespace oscar::test {

/// The GPU's backend; null, and the case counts as skipped, if there is no GPU.
[[nodiscard]] std::unique_ptr<Backend> gpu_or_skip();

/// What a backend had to say.
class Notices : public Status {
 public:
  void notice(const std::string& text) override;
  [[nodiscard]] bool mention(const std::string& fragment) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};
/// A backend made while an environment variable has this value; the GPU must be there.
[[nodiscard]] std::unique_ptr<Backend> gpu_with(const char* variable, const std::string& value, Status& status);

}  // namespace oscar::test
