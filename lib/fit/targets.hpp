// SPDX-License-Identifier: MIT
// What can use a rotation set, and what it can read.
#pragma once

#include <string>
#include <vector>

namespace oscar {

struct Target {
  std::string name;
  bool linear = false;                          // a read side that is not the inverse of a rotation
  bool per_head = false;                        // one matrix per KV head
  bool mean = false;                            // a mean key
  bool key_clips = false, value_clips = false;  // a clip ratio per KV head
  bool lloyd_max = false;                       // codec lloyd-max
};
/// Returns sglang-v1, sglang-v3, llamacpp and any.
[[nodiscard]] const std::vector<Target>& targets();
/// Throws UsageError that lists the names.
[[nodiscard]] const Target& target_from_name(const std::string& name);

}  // namespace oscar
