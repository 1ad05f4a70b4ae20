// SPDX-License-Identifier: MIT
// Backend::compare() of backends that compute exact attention for each sequence.
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
