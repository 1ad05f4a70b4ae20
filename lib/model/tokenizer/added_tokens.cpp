// SPDX-License-Identifier: MIT
#include "model/tokenizer/added_tokens.hpp"

#include <algorithm>

namespace oscar {
namespace {

/// What Unicode calls white space.
constexpr std::string_view kSpaces[] = {
    "\t",           "\n",           "\v",           "\f",           "\r",           " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82",
    "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88",
    "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f",
    "\xe3\x80\x80"};

std::size_t spaces_at_start(std::string_view text) {
  std::size_t length = 0;
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view space : kSpaces) {
      if (!text.substr(length).starts_with(space)) continue;
      length += space.size();
      more = true;
    }
  }
  return length;
}

std::size_t spaces_at_end(std::string_view text) {
  std::size_t length = 0;
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view space : kSpaces) {
      if (!text.substr(0, text.size() - length).ends_with(space)) continue;
      length += space.size();
      more = true;
    }
  }
  return length;
}

}  // namespace

void AddedTokens::add(const AddedToken& token) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(token.content[i]); };
  for (std::size_t i = 1; i < token.content.size(); ++i) {
    inner_.set(byte(i));
    pairs_.set(std::size_t{byte(i - 1)} * 256 + byte(i));
  }
  if (token.takes_right) last_.set(byte(token.content.size() - 1));
  any_takes_left_ = any_takes_left_ || token.takes_left;
  auto& same_start = by_first_byte_[static_cast<unsigned char>(token.content.front())];
  same_start.push_back(token);
  std::stable_sort(same_start.begin(), same_start.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
}

bool AddedTokens::split(std::string_view text, const std::function<bool(std::string_view)>& between,
                        const std::function<bool(std::int32_t)>& found) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* token = match(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = std::max(at, done), end = at + token->content.size();
    if (token->takes_left && begin > done) begin -= spaces_at_end(text.substr(done, begin - done));
    if (token->takes_right) end += spaces_at_start(text.substr(end));
    if (begin > done && !between(text.substr(done, begin - done))) return false;
    if (!found(token->id)) return false;
    at += token->content.size();
    done = end;
  }
  return done >= text.size() || between(text.substr(done));
}

bool AddedTokens::may_cut(char left, char right) const {
  const auto before = static_cast<unsigned char>(left), after = static_cast<unsigned char>(right);
  if (before >= 0x80U) return !inner_[after] && last_.none() && !any_takes_left_;
  const bool space = before <= ' ';
  return !pairs_[std::size_t{before} * 256 + after] && !last_[before] && !(space && any_takes_left_);
}

const AddedToken* AddedTokens::match(std::string_view text) const {
  for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text.front())]) {
    if (text.starts_with(token.content)) return &token;
  }
  return nullptr;
}

}  // namespace oscar
