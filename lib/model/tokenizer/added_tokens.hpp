// SPDX-License-Identifier: MIT
// Tokens that are found in a text before it is cut into words, such as "<|endoftext|>".
#pragma once

#include <array>
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

 private:
  [[nodiscard]] const AddedToken* match(std::string_view text) const;

  std::array<std::vector<AddedToken>, 256> by_first_byte_;
};

}  // namespace oscar
