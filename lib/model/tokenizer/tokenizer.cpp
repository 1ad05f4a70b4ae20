// SPDX-License-Identifier: MIT
#include "model/tokenizer/tokenizer.hpp"

#include <unordered_map>
#include <utility>

#include "base/errors.hpp"
#include "model/tokenizer/bpe.hpp"
#include "model/tokenizer/tokenizer_file.hpp"
#include "model/tokenizer/unicode.hpp"
#include "model/tokenizer/words.hpp"

namespace oscar {
namespace {

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
  std::vector<NormalizerStep> normalizer;
  std::vector<Words> words;
  std::vector<std::int32_t> prefix;
  BytePairEncoder encoder;

  Impl(TokenizerFile file, const std::string& where)
      : normalizer(std::move(file.normalizer)), prefix(std::move(file.prefix)), encoder(std::move(file.model), where) {
    for (AddedToken& token : file.added_tokens) {
      if (token.normalized) token.content = normalize(token.content);
      (token.normalized ? after : before).add(token);
    }
    for (const SplitStep& step : file.splits) words.emplace_back(step, where);
  }

  [[nodiscard]] std::string normalize(std::string_view text) const {
    std::string out(text);
    for (const NormalizerStep& step : normalizer) {
      switch (step.kind) {
        case NormalizerStep::Kind::kNfc:
          out = to_nfc(out);
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
    if (step == words.size()) return word(text);
    return words[step].split(text, first, [&](std::string_view piece) {
      const bool go_on = split(piece, step + 1, first, word);
      first = false;
      return go_on;
    });
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
  bool first = true;
  const auto take_normal = [&](std::string_view piece) {
    return impl_->split(piece, 0, std::exchange(first, false), take_word);
  };
  const auto take_added = [&](std::int32_t id) {
    first = false;
    return take_id(id);
  };
  impl_->before.split(
      text,
      [&](std::string_view piece) { return impl_->after.split(impl_->normalize(piece), take_normal, take_added); },
      take_added);
  return ids;
}

const std::vector<std::int32_t>& Tokenizer::prefix() const { return impl_->prefix; }

}  // namespace oscar
