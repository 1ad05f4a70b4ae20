// SPDX-License-Identifier: MIT
// Byte pair encoding of one word: start from its bytes, or its characters, and as long as two neighbours have a merge,
// apply the merge of lowest rank, leftmost first. O(n log n) in the length of the word.
// Non-goals: dropout, word-boundary markers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oscar {

struct BpeModel {
  std::unordered_map<std::string, std::int32_t> vocabulary;  // ids of byte strings
  std::vector<std::pair<std::string, std::string>> merges;   // in order of rank
  bool ignore_merges = false;                                // a word that is a token is not merged together but taken
  /// Words start as bytes if `bytes` is set, otherwise as characters. A character that is no token becomes the tokens
  /// of its bytes ("<0x0A>") if `byte_fallback` is set. Any other byte or character without a token becomes `unknown`,
  /// or nothing if that is -1, as in Hugging Face's tokenizers.
  bool bytes = true;
  bool byte_fallback = false;
  std::int32_t unknown = -1;
  bool fuse_unknown = false;  // several in a row are one
};

class BytePairEncoder {
 public:
  /// Throws DataError naming `where` if byte fallback lacks a byte's token, or a merge lacks that of a part or of its
  /// result.
  BytePairEncoder(BpeModel model, const std::string& where);

  /// Appends the ids of `word`.
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const;
  /// What begins words inside a text that is encoded as one: no token has it behind anything else, so that a text can
  /// be cut before it. Empty: there is no such mark.
  [[nodiscard]] std::string_view mark() const { return mark_; }

 private:
  struct Merge {
    std::int32_t rank = 0, result = 0;
  };
  [[nodiscard]] const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  void find_byte_ids(const std::string& where);
  [[nodiscard]] std::string_view find_mark() const;
  /// Ids to start from.
  [[nodiscard]] std::vector<std::int32_t> start(std::string_view word) const;
  void start_character(std::string_view character, std::vector<std::int32_t>& ids) const;
  void start_unknown(std::vector<std::int32_t>& ids) const;

  BpeModel model_;
  std::string_view mark_;
  std::array<std::int32_t, 256> byte_ids_{};         // -1: the byte has no token
  std::unordered_map<std::uint64_t, Merge> merges_;  // key: left id << 32 | right id
};

}  // namespace oscar
