// SPDX-License-Identifier: MIT
#include "model/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <unordered_map>

#include "base/errors.hpp"
#include "model/tokenizer/bpe.hpp"
#include "model/tokenizer/split_pattern.hpp"
#include "model/tokenizer/tokenizer_file.hpp"
#include "model/tokenizer/unicode.hpp"

namespace oscar {
namespace {

/// Finds added tokens in a text: leftmost first, the longest of those that start at the same place.
class AddedTokens {
 public:
  void add(const AddedToken& token) {
    auto& same_start = by_first_byte_[static_cast<unsigned char>(token.content.front())];
    same_start.push_back(token);
    std::stable_sort(same_start.begin(), same_start.end(),
                     [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  }

  /// Calls between(text) and found(id) in order until one returns false. False if one did.
  bool split(std::string_view text, const std::function<bool(std::string_view)>& between,
             const std::function<bool(std::int32_t)>& found) const {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
      const AddedToken* token = match(text.substr(at));
      if (token == nullptr) {
        ++at;
        continue;
      }
      if (at > done && !between(text.substr(done, at - done))) return false;
      if (!found(token->id)) return false;
      done = at += token->content.size();
    }
    return done == text.size() || between(text.substr(done));
  }

 private:
  [[nodiscard]] const AddedToken* match(std::string_view text) const {
    for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text.front())]) {
      if (text.starts_with(token.content)) return &token;
    }
    return nullptr;
  }

  std::array<std::vector<AddedToken>, 256> by_first_byte_;
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

}  // namespace

struct Tokenizer::Impl {
  AddedTokens before, after;  // normalization
  bool nfc = false;
  std::vector<SplitPattern> patterns;
  BytePairEncoder encoder;

  Impl(TokenizerFile file, const std::string& where)
      : nfc(file.nfc), encoder(std::move(file.vocabulary), file.merges, file.ignore_merges, where) {
    for (AddedToken& token : file.added_tokens) {
      if (!token.normalized) {
        before.add(token);
      } else {
        if (nfc) token.content = to_nfc(token.content);
        after.add(token);
      }
    }
    for (const std::string& pattern : file.split_patterns) patterns.emplace_back(pattern, where);
  }

  /// Applies the patterns from `step` on.
  bool split(std::string_view text, std::size_t step, const std::function<bool(std::string_view)>& word) const {
    if (step == patterns.size()) return word(text);
    return patterns[step].split(text, [&](std::string_view piece) { return split(piece, step + 1, word); });
  }
};

Tokenizer::Tokenizer(const std::filesystem::path& tokenizer_json)
    : impl_(std::make_unique<Impl>(read_tokenizer_file(tokenizer_json), tokenizer_json.string())) {}

Tokenizer::~Tokenizer() = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, const std::string& where, std::size_t enough) const {
  if (const auto offset = find_invalid_utf8(text)) {
    throw DataError("the text is not UTF-8 at byte " + std::to_string(*offset), where,
                    "convert it with iconv -t UTF-8");
  }
  std::vector<std::int32_t> ids;
  WordCache cache(impl_->encoder);
  const auto take_id = [&](std::int32_t id) {
    ids.push_back(id);
    return ids.size() < enough;
  };
  const auto take_word = [&](std::string_view word) {
    cache.encode(word, ids);
    return ids.size() < enough;
  };
  const auto take_normal = [&](std::string_view piece) { return impl_->split(piece, 0, take_word); };
  impl_->before.split(
      text,
      [&](std::string_view piece) {
        return impl_->after.split(impl_->nfc ? to_nfc(piece) : std::string(piece), take_normal, take_id);
      },
      take_id);
  return ids;
}

}  // namespace oscar
