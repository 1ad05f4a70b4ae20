// SPDX-License-Identifier: MIT
#include "serve/text_quality.hpp"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "model/tokenizer/unicode.hpp"

namespace oscar::serve {
namespace {

constexpr const char* kWord =
    R"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])"
    R"(|(?:(?![\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])[\p{L}\p{M}])+)";
constexpr const char* kBroken = R"([\x{FFFD}\p{Cn}\p{Co}]|(?![\t\n\r])\p{Cc})";
constexpr std::size_t kRun = 4;

/// With a space in place of every byte that is no part of UTF-8.
std::string only_utf8(std::string_view text) {
  std::string kept(text);
  for (std::size_t from = 0;;) {
    const auto bad = find_invalid_utf8(std::string_view(kept).substr(from));
    if (!bad) return kept;
    kept[from += *bad] = ' ';
  }
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

TextReader::TextReader() : word_(kWord, "words"), broken_(kBroken, "broken characters") {}

std::vector<std::string> TextReader::words(std::string_view text) const {
  std::vector<std::string> found;
  word_.split(
      only_utf8(text), false,
      [&](std::string_view word) {
        found.push_back(fold_case(word));
        return true;
      },
      [](std::string_view) { return true; });
  return found;
}

std::size_t TextReader::broken_characters(std::string_view text) const {
  std::size_t count = 0;
  broken_.split(
      only_utf8(text), false,
      [&](std::string_view) {
        ++count;
        return true;
      },
      [](std::string_view) { return true; });
  return count;
}

double repetition(const std::vector<std::string>& words) {
  if (words.size() < kRun) return 0;
  const std::size_t runs = words.size() - kRun + 1;
  std::set<std::vector<std::string>> distinct;
  for (auto at = words.begin(); at + kRun <= words.end(); ++at) distinct.emplace(at, at + kRun);
  return 1 - static_cast<double>(distinct.size()) / static_cast<double>(runs);
}

void KnownWords::add(const std::vector<std::string>& words) {
  for (const std::string& word : std::unordered_set<std::string>(words.begin(), words.end())) ++texts_[word];
}

double KnownWords::garbling(const std::vector<std::string>& words, std::size_t broken,
                            const std::vector<std::string>& except) const {
  const std::unordered_set<std::string> own(except.begin(), except.end());
  std::size_t letters = broken, unknown = broken;
  for (const std::string& word : words) {
    const auto found = texts_.find(word);
    const int elsewhere = (found == texts_.end() ? 0 : found->second) - (own.contains(word) ? 1 : 0);
    letters += count_characters(word);
    unknown += elsewhere > 0 ? 0 : count_characters(word);
  }
  return letters == 0 ? 0 : static_cast<double>(unknown) / static_cast<double>(letters);
}

}  // namespace oscar::serve
