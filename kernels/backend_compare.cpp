// SPDX-License-Identifier: MIT
// What every backend is linked with.
#include "kernels/backend.hpp"

namespace oscar {

std::vector<std::vector<std::vector<AttentionErrors>>> Backend::compare(std::span<const ComparedSequence> sequences) {
  std::vector<std::vector<std::vector<AttentionErrors>>> errors;
  for (const auto& [sequence, candidates, windows] : sequences) {
    errors.push_back(sequence->compare(candidates, windows));
  }
  return errors;
}

}  // namespace oscar
