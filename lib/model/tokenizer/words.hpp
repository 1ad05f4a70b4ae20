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
  /// here. open: it goes on; only words that are the same whatever follows, and where nothing is cut the text itself.
  bool split(std::string_view text, bool first, bool open, const WordHook& word) const;
  /// False: every text is one word, however long it is.
  [[nodiscard]] bool cuts() const { return step_.kind != SplitStep::Kind::kMetaspace || step_.cut; }

 private:
  bool split_metaspace(std::string_view text, bool first, bool open, const WordHook& word) const;

  SplitStep step_;
  std::optional<SplitPattern> pattern_;
};

[[nodiscard]] std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace oscar
