// SPDX-License-Identifier: MIT
// Tokens that are found in a text before it is cut into words, such as "<|endoftext|>".
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool normalized = false;                       // looked for after normalization, not before
  bool takes_left = false, takes_right = false;  // white space beside it is part of it
};

/// Finds them: leftmost first, the longest of those that start at the same place.
class AddedTokens {
 public:
  void add(const AddedToken& token);
  /// Calls between(text) and found(id) in order until one returns false. False if one did.
  bool split(std::string_view text, const std::function<bool(std::string_view)>& between,
             const std::function<bool(std::int32_t)>& found) const;

  /// Whether a text can be cut before `right` without touching a token, or white space that belongs to one. left,
  /// right: the bytes at the cut; a byte above 0x7f on the left stands for any of them.
  [[nodiscard]] bool may_cut(char left, char right) const;

 private:
  [[nodiscard]] const AddedToken* match(std::string_view text) const;

  std::array<std::vector<AddedToken>, 256> by_first_byte_;
  std::bitset<256> inner_, last_;  // bytes that are not the first of a token; the last ones of those that take spaces
  std::bitset<std::size_t{256} * 256> pairs_;  // that stand in tokens
  bool any_takes_left_ = false;
};

}  // namespace oscar
