// SPDX-License-Identifier: MIT
// Ends work in the background that nobody waits for any more: a request that is under way when an error ends the run.
#pragma once

#include <atomic>

namespace oscar {

/// While it lives, throw_if_interrupted() in this thread also throws, Interrupted, once `stop` is true. Of scopes
/// inside each other the innermost counts.
class StopScope {
 public:
  /// stop: must outlive the scope; any thread may set it.
  explicit StopScope(const std::atomic<bool>& stop) noexcept;
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  const std::atomic<bool>* outer_;
};

}  // namespace oscar
