// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/errors.hpp"
#include "model/tokenizer/tokenizer_file.hpp"
#include "model/tokenizer/unicode.hpp"

namespace oscar {
namespace {

/// Gets a word; false: no more are wanted.
using WordHook = std::function<bool(std::string_view)>;

/// Cuts before, or after, each place where `mark` stands.
bool cut_at(std::string_view text, std::string_view mark, bool before, const WordHook& word) {
  std::size_t done = 0;
  for (std::size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + mark.size())) {
    const std::size_t cut = before ? at : at + mark.size();
    if (cut > done && !word(text.substr(done, cut - done))) return false;
    done = cut;
  }
  return done == text.size() || word(text.substr(done));
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return out.append(text.substr(done));
}

/// One step of cutting text into words (tokenizer_file.hpp).
class Words {
 public:
  /// Throws DataError naming `where` for an expression that is not valid.
  Words(const SplitStep& step, const std::string& where) : step_(step) {
    if (step.kind == Kind::kIsolated || step.kind == Kind::kMatches) pattern_.emplace(step.pattern, where);
  }
  /// Calls word() for the words of `text` in order until it returns false; false if it did. first: the text begins
  /// here.
  bool split(std::string_view text, bool first, const WordHook& word) const {
    switch (step_.kind) {
      case Kind::kIsolated:
        return pattern_->split(text, word, word);
      case Kind::kMatches:
        return pattern_->split(text, word, [](std::string_view) { return true; });
      case Kind::kAfter:
        return cut_at(text, step_.pattern, false, word);
      case Kind::kMetaspace:
        break;
    }
    std::string marked = replace_all(text, " ", step_.pattern);
    const bool prepend =
        step_.prepend == SplitStep::Prepend::kAlways || (step_.prepend == SplitStep::Prepend::kFirst && first);
    if (prepend && !marked.starts_with(step_.pattern)) marked.insert(0, step_.pattern);
    return step_.cut ? cut_at(marked, step_.pattern, true, word) : word(marked);
  }

 private:
  using Kind = SplitStep::Kind;

  SplitStep step_;
  std::optional<SplitPattern> pattern_;
};

/// Words repeat: most are encoded once.
class WordCache {
 public:
  explicit WordCache(const BytePairEncoder& encoder) : encoder_(encoder) {}

  void encode(std::string_view word, std::vector<std::int32_t>& ids) {
    if (word.size() > kMaxWord) return encoder_.encode(word, ids);
    key_ = word;
    auto found = cache_.find(key_);
    if (found == cache_.end()) {
      if (cache_.size() >= kMaxWords) cache_.clear();
      found = cache_.try_emplace(key_).first;
      encoder_.encode(word, found->second);
    }
    ids.insert(ids.end(), found->second.begin(), found->second.end());
  }

 private:
  static constexpr std::size_t kMaxWord = 64, kMaxWords = 1 << 17;
  const BytePairEncoder& encoder_;
  std::string key_;
  std::unordered_map<std::string, std::vector<std::int32_t>> cache_;
};

class JsonEncoder final : public TextEncoder {
 public:
  JsonEncoder(TokenizerFile file, const std::string& where)
      : where_(where),
        normalizer_(std::move(file.normalizer)),
        prefix_(std::move(file.prefix)),
        encoder_(std::move(file.model), where) {
    for (AddedToken& token : file.added_tokens) {
      if (token.normalized) token.content = normalize(token.content);
      (token.normalized ? after_ : before_).add(token);
    }
    for (const SplitStep& step : file.splits) words_.emplace_back(step, where);
  }

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, std::size_t enough) const override {
    std::vector<std::int32_t> ids;
    WordCache cache(encoder_);
    bool first = true;
    const auto take_word = [&](std::string_view word) {
      cache.encode(word, ids);
      return ids.size() < enough;
    };
    const auto take_added = [&](std::int32_t id) {
      if (id == AddedToken::kNoId) {
        throw DataError("the text has a special token that tokenizer_config.json names without an id", where_,
                        "encode the text elsewhere and pass token ids with --tokens");
      }
      first = false;
      ids.push_back(id);
      return ids.size() < enough;
    };
    const auto take_normal = [&](std::string_view piece) {
      return split(piece, 0, std::exchange(first, false), take_word);
    };
    before_.split(
        text, [&](std::string_view piece) { return after_.split(normalize(piece), take_normal, take_added); },
        take_added);
    return ids;
  }

  [[nodiscard]] const std::vector<std::int32_t>& prefix() const override { return prefix_; }

 private:
  [[nodiscard]] std::string normalize(std::string_view text) const {
    std::string out(text);
    for (const NormalizerStep& step : normalizer_) {
      switch (step.kind) {
        case NormalizerStep::Kind::kNfc:
          out = to_nfc(out, where_);
          break;
        case NormalizerStep::Kind::kPrepend:
          out = step.to + out;
          break;
        case NormalizerStep::Kind::kReplace:
          out = replace_all(out, step.from, step.to);
          break;
      }
    }
    return out;
  }

  /// Applies the steps from `step` on to a part of the text; `first`: its start is the text's.
  bool split(std::string_view text, std::size_t step, bool first, const WordHook& word) const {
    if (step == words_.size()) return text.empty() || word(text);
    return words_[step].split(text, first, [&](std::string_view piece) {
      const bool go_on = split(piece, step + 1, first, word);
      first = false;
      return go_on;
    });
  }

  AddedTokens before_, after_;  // normalization
  std::string where_;
  std::vector<NormalizerStep> normalizer_;
  std::vector<Words> words_;
  std::vector<std::int32_t> prefix_;
  BytePairEncoder encoder_;
};

/// What Unicode calls white space.
constexpr std::string_view kSpaces[] = {
    "\t",           "\n",           "\v",           "\f",           "\r",           " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82",
    "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88",
    "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f",
    "\xe3\x80\x80"};

/// Bytes of white space at the start of a text, or at its end.
std::size_t spaces_of(std::string_view text, bool at_end) {
  const std::size_t all = text.size();
  const auto remove = [&](std::string_view space) {
    const bool there = at_end ? text.ends_with(space) : text.starts_with(space);
    if (there) at_end ? text.remove_suffix(space.size()) : text.remove_prefix(space.size());
    return there;
  };
  while (std::ranges::any_of(kSpaces, remove)) {
  }
  return all - text.size();
}

}  // namespace

std::unique_ptr<const TextEncoder> make_json_encoder(const std::filesystem::path& tokenizer_json) {
  return std::make_unique<JsonEncoder>(read_tokenizer_file(tokenizer_json), tokenizer_json.string());
}

void AddedTokens::add(const AddedToken& token) {
  auto& same_start = by_first_byte_[static_cast<unsigned char>(token.content.front())];
  const auto is_longer = [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); };
  same_start.insert(std::upper_bound(same_start.begin(), same_start.end(), token, is_longer), token);
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
    if (token->takes_left && begin > done) begin -= spaces_of(text.substr(done, begin - done), true);
    if (token->takes_right) end += spaces_of(text.substr(end), false);
    if (begin > done && !between(text.substr(done, begin - done))) return false;
    if (!found(token->id)) return false;
    at += token->content.size();
    done = end;
  }
  return done >= text.size() || between(text.substr(done));
}

const AddedToken* AddedTokens::match(std::string_view text) const {
  for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text.front())]) {
    if (text.starts_with(token.content)) return &token;
  }
  return nullptr;
}

namespace {

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

constexpr std::int32_t kNone = -1;  // in place of an id
constexpr std::int32_t kGone = -1;  // a symbol that was merged into its left neighbour

struct Symbol {
  std::int32_t id = 0;
  int previous = -1, next = -1;
};

struct Candidate {
  std::int32_t rank = 0;
  int left = 0;
  std::int32_t left_id = 0, right_id = 0, result = 0;
  bool operator<(const Candidate& other) const {  // the top of the queue: lowest rank, then leftmost
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

}  // namespace

BytePairEncoder::BytePairEncoder(BpeModel model, const std::string& where) : model_(std::move(model)) {
  const auto id_of = [&](const std::string& token, const std::string& what) {
    const auto found = model_.vocabulary.find(token);
    if (found == model_.vocabulary.end())
      throw DataError(what + " is not in the vocabulary", where, "fetch the tokenizer again");
    return found->second;
  };
  if (model_.bytes || model_.byte_fallback) find_byte_ids(where);
  merges_.reserve(model_.merges.size());
  std::int32_t rank = 0;
  for (const auto& [left, right] : model_.merges) {
    const std::string what = "a part or the result of merge " + std::to_string(rank);
    const std::uint64_t key = key_of(id_of(left, what), id_of(right, what));
    if (!merges_.try_emplace(key, Merge{rank, id_of(left + right, what)}).second) {
      throw DataError(fmt::format("merge {} stands there twice, and readers differ in which counts", rank), where,
                      "encode the text elsewhere and pass token ids with --tokens");
    }
    ++rank;
  }
  model_.merges.clear();
}

void BytePairEncoder::find_byte_ids(const std::string& where) {
  for (int byte = 0; byte < 256; ++byte) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    const auto high = static_cast<std::size_t>(byte / 16), low = static_cast<std::size_t>(byte % 16);
    const std::string token = model_.bytes ? std::string(1, static_cast<char>(byte))
                                           : std::string("<0x") + kDigits[high] + kDigits[low] + ">";
    const auto found = model_.vocabulary.find(token);
    if (found == model_.vocabulary.end() && model_.byte_fallback) {
      throw DataError("the byte " + std::to_string(byte) + " is not in the vocabulary", where,
                      "fetch the tokenizer again");
    }
    byte_ids_[static_cast<std::size_t>(byte)] = found == model_.vocabulary.end() ? kNone : found->second;
  }
}

std::vector<std::int32_t> BytePairEncoder::start(std::string_view word) const {
  std::vector<std::int32_t> ids;
  ids.reserve(word.size());
  for (std::size_t i = 0; i < word.size();) {
    const auto first = static_cast<unsigned char>(word[i]);
    const std::size_t length = model_.bytes || first < 0x80U ? 1 : first < 0xe0U ? 2 : first < 0xf0U ? 3 : 4;
    if (model_.bytes) {
      const std::int32_t id = byte_ids_[first];
      id == kNone ? start_unknown(ids) : ids.push_back(id);
    } else {
      start_character(word.substr(i, length), ids);
    }
    i += length;
  }
  return ids;
}

void BytePairEncoder::start_character(std::string_view character, std::vector<std::int32_t>& ids) const {
  if (const auto found = model_.vocabulary.find(std::string(character)); found != model_.vocabulary.end()) {
    ids.push_back(found->second);
  } else if (model_.byte_fallback) {
    for (const char byte : character) ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
  } else {
    start_unknown(ids);
  }
}

void BytePairEncoder::start_unknown(std::vector<std::int32_t>& ids) const {
  const bool goes_on = model_.fuse_unknown && !ids.empty() && ids.back() == model_.unknown;
  if (model_.unknown != kNone && !goes_on) ids.push_back(model_.unknown);
}

const BytePairEncoder::Merge* BytePairEncoder::find_merge(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairEncoder::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (model_.ignore_merges) {
    if (const auto whole = model_.vocabulary.find(std::string(word)); whole != model_.vocabulary.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  const std::vector<std::int32_t> first = start(word);
  const int count = static_cast<int>(first.size());
  std::vector<Symbol> symbols(first.size());
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int left) {
    const int right = left < 0 ? -1 : symbols[static_cast<std::size_t>(left)].next;
    if (right < 0) return;
    const std::int32_t a = symbols[static_cast<std::size_t>(left)].id, b = symbols[static_cast<std::size_t>(right)].id;
    if (const Merge* merge = find_merge(a, b)) queue.push({merge->rank, left, a, b, merge->result});
  };
  for (int i = 0; i < count; ++i) {
    symbols[static_cast<std::size_t>(i)] = {first[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1};
  }
  for (int i = 0; i + 1 < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<std::size_t>(best.left)];
    if (left.id != best.left_id || left.next < 0) continue;  // overtaken by a better merge
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    if (right.id != best.right_id) continue;
    left.id = best.result;
    left.next = right.next;
    right.id = kGone;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (int i = count > 0 ? 0 : -1; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    ids.push_back(symbols[static_cast<std::size_t>(i)].id);
  }
}

}  // namespace oscar
