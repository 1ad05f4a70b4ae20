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

// One step of cutting text into words (tokenizer_file.hpp).

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
      : normalizer_(std::move(file.normalizer)),
        prefix_(std::move(file.prefix)),
        encoder_(std::move(file.model), where) {
    for (AddedToken& token : file.added_tokens) {
      if (token.normalized) token.content = normalize(token.content);
      (token.normalized ? after_ : before_).add(token);
    }
    for (const SplitStep& step : file.splits) words_.emplace_back(step, where);
  }

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, std::size_t enough,
                                                 TextEnd end) const override {
    std::vector<std::int32_t> ids;
    WordCache cache(encoder_);
    const bool open = end == TextEnd::kOpen;
    if (open) text = text.substr(0, last_cut(text));
    const auto take_id = [&](std::int32_t id) {
      ids.push_back(id);
      return ids.size() < enough;
    };
    const auto take_word = [&](std::string_view word) {
      cache.encode(word, ids);
      return ids.size() < enough;
    };
    bool first = true;
    bool last = false;  // the piece of text that is open, if one is
    const auto take_normal = [&](std::string_view all, std::string_view piece) {
      const bool goes_on = last && piece.data() + piece.size() == all.data() + all.size();
      return split(piece, 0, std::exchange(first, false), goes_on, take_word);
    };
    const auto take_added = [&](std::int32_t id) {
      first = false;
      return take_id(id);
    };
    before_.split(
        text,
        [&](std::string_view piece) {
          last = open && piece.data() + piece.size() == text.data() + text.size();
          const std::string all = normalize(piece);
          return after_.split(
              all, [&](std::string_view part) { return take_normal(all, part); }, take_added);
        },
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

  /// Applies the steps from `step` on to a part of the text; `first`: its start is the text's; `open`: its end is where
  /// the text goes on.
  bool split(std::string_view text, std::size_t step, bool first, bool open, const WordHook& word) const {
    if (step == words_.size()) {
      const std::size_t end = open ? last_start_of_word(text) : text.size();
      return end == 0 || word(text.substr(0, end));
    }
    return words_[step].split(text, first, open, [&](std::string_view piece) {
      const bool go_on = split(piece, step + 1, first, open && !words_[step].cuts(), word);
      first = false;
      return go_on;
    });
  }

  /// The last place where added tokens and normal form cannot reach from one side to the other; 0: there is none.
  [[nodiscard]] std::size_t last_cut(std::string_view text) const {
    std::string replaced;  // the characters that a step replaces, of which no place is one
    for (const NormalizerStep& step : normalizer_) {
      if (step.kind != NormalizerStep::Kind::kReplace) continue;
      if (!replaced.empty()) return 0;  // one step could make what the other replaces
      replaced = step.from;
    }
    const auto stays = [&](char c) { return replaced.find(c) == std::string::npos; };
    for (std::size_t at = text.size(); at-- > 1;) {
      const char left = text[at - 1], right = text[at];
      // Nothing composes with a character of ASCII on its left.
      if (static_cast<unsigned char>(right) >= 0x80U || !stays(left) || !stays(right)) continue;
      if (before_.may_cut(left, right) && after_.may_cut(left, right)) return at;
    }
    return 0;
  }

  /// Where the last word of a text begins that is encoded as one: behind it no token reaches back; 0: there is none.
  [[nodiscard]] std::size_t last_start_of_word(std::string_view text) const {
    const std::string_view mark = encoder_.mark();
    if (mark.empty()) return 0;
    for (std::size_t at = text.rfind(mark); at != std::string_view::npos && at > 0; at = text.rfind(mark, at - 1)) {
      if (!text.substr(0, at).ends_with(mark)) return at;
    }
    return 0;
  }

  AddedTokens before_, after_;  // normalization
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
