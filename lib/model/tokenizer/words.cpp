// SPDX-License-Identifier: MIT
#include "model/tokenizer/words.hpp"

namespace oscar {
namespace {

using Kind = SplitStep::Kind;

/// Cuts before, or after, each place where `mark` stands. open: what is behind the last cut is no word yet.
bool cut_at(std::string_view text, std::string_view mark, bool before, bool open, const WordHook& word) {
  std::size_t done = 0;
  for (std::size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + mark.size())) {
    const std::size_t cut = before ? at : at + mark.size();
    if (cut > done && !word(text.substr(done, cut - done))) return false;
    done = cut;
  }
  return open || done == text.size() || word(text.substr(done));
}

}  // namespace

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return out.append(text.substr(done));
}

Words::Words(const SplitStep& step, const std::string& where) : step_(step) {
  if (step.kind == Kind::kIsolated || step.kind == Kind::kMatches) pattern_.emplace(step.pattern, where);
}

bool Words::split(std::string_view text, bool first, bool open, const WordHook& word) const {
  switch (step_.kind) {
    case Kind::kIsolated:
      return pattern_->split(text, open, word, word);
    case Kind::kMatches:
      return pattern_->split(text, open, word, [](std::string_view) { return true; });
    case Kind::kAfter:
      return cut_at(text, step_.pattern, false, open, word);
    case Kind::kMetaspace:
      break;
  }
  return split_metaspace(text, first, open, word);
}

bool Words::split_metaspace(std::string_view text, bool first, bool open, const WordHook& word) const {
  std::string marked = replace_all(text, " ", step_.pattern);
  const bool prepend =
      step_.prepend == SplitStep::Prepend::kAlways || (step_.prepend == SplitStep::Prepend::kFirst && first);
  if (prepend && !marked.starts_with(step_.pattern)) marked.insert(0, step_.pattern);
  return step_.cut ? cut_at(marked, step_.pattern, true, open, word) : word(marked);
}

}  // namespace oscar
