// SPDX-License-Identifier: MIT
// Byte pair encoding of one word: start from its bytes, and as long as two neighbours have a merge, apply the merge of
// lowest rank, leftmost first. O(n log n) in the length of the word.
// Non-goals: dropout, unknown tokens (every byte has one), word-boundary markers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oscar {

class BytePairEncoder {
 public:
  /// vocabulary: ids of byte strings. merges: pairs of byte strings in order of rank. Throws DataError naming `where`
  /// if a byte has no token, or a merge's parts or result have none.
  BytePairEncoder(std::unordered_map<std::string, std::int32_t> vocabulary,
                  const std::vector<std::pair<std::string, std::string>>& merges, bool ignore_merges,
                  const std::string& where);

  /// Appends the ids of `word`.
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const;

 private:
  struct Merge {
    std::int32_t rank = 0, result = 0;
  };
  [[nodiscard]] const Merge* find_merge(std::int32_t left, std::int32_t right) const;

  std::unordered_map<std::string, std::int32_t> vocabulary_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::unordered_map<std::uint64_t, Merge> merges_;  // key: left id << 32 | right id
  bool ignore_merges_;                               // a word that is a token is not merged together but taken
};

}  // namespace oscar
