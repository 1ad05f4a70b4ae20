// SPDX-License-Identifier: MIT
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "model/tokenizer/encoders.hpp"
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

}  // namespace

std::unique_ptr<const TextEncoder> make_json_encoder(const std::filesystem::path& tokenizer_json) {
  return std::make_unique<JsonEncoder>(read_tokenizer_file(tokenizer_json), tokenizer_json.string());
}

}  // namespace oscar
