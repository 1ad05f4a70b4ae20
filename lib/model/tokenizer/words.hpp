// SPDX-License-Identifier: MIT
// One step of cutting text into words (tokenizer_file.hpp).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "model/tokenizer/split_pattern.hpp"
#include "model/tokenizer/tokenizer_file.hpp"

namespace oscar {

/// Gets a word; false: no more are wanted.
using WordHook = std::function<bool(std::string_view)>;

class Words {
 public:
  /// Throws DataError naming `where` for an expression that is not valid.
  Words(const SplitStep& step, const std::string& where);
  /// Calls word() for the words of `text` in order until it returns false; false if it did. first: the text begins
  /// here.
  bool split(std::string_view text, bool first, const WordHook& word) const;

 private:
  bool split_metaspace(std::string_view text, bool first, const WordHook& word) const;

  SplitStep step_;
  std::optional<SplitPattern> pattern_;
};

[[nodiscard]] std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace oscar
