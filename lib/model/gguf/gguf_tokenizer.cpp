// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/errors.hpp"
#include "model/gguf/gguf_model.hpp"

namespace oscar {
namespace {

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char *kMarks = R"([\p{P}\$\+<=>\^~\|]+)", *kNumber = R"(\p{N}+)", *kThreeDigits = "[0-9][0-9][0-9]";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Letters: the first expression of llama.cpp's takes those that are no small ones of ASCII, the second no large ones.
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?(?:(?![a-z])\p{L})*(?:(?![A-Z])\p{L})+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?(?:(?![a-z])\p{L})+(?:(?![A-Z])\p{L})*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?(?:(?![a-z])\p{L})*(?:(?![A-Z])\p{L})+|[^\r\n\p{L}\p{N}]?(?:(?![a-z])\p{L})+(?:(?![A-Z])\p{L})*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// How text is cut into words before byte-level BPE, by llama.cpp's name for it ("tokenizer.ggml.pre").
struct Words {
  std::string_view name;
  std::array<const char*, 4> patterns;  // regular expressions, applied one after the other; null: none
  bool whole_words = false;             // a word that is a token is taken as it is
  bool begin = false;                   // texts begin with a token unless the file denies it
};

constexpr std::array kWords{
    Words{"chatglm-bpe", {kLlama3}},
    Words{"default", {kMarks, kGpt2, kNumber, kThreeDigits}},
    Words{"deepseek-r1-qwen", {kQwen2}},
    Words{"glm4", {kLlama3}},
    Words{"gpt-2", {kGpt2}},
    Words{"gpt-4o", {kO200k}, true},
    Words{"llama-bpe", {kLlama3}, true, true},
    Words{"qwen2", {kQwen2}},
    Words{"refact", {kDigit, kGpt2}},
    Words{"smollm", {kDigit, kGpt2}},
    Words{"starcoder", {kDigit, kGpt2}},
    Words{"tekken", {kTekken}, true, true},
};

/// pre: a text; null is llama.cpp's default, which it warns of. Throws DataError with `where` for a name that is not
/// known here.
const Words& words_of(const Json& pre, const std::string& where) {
  const std::string name = pre.is_string() ? pre.get<std::string>() : "default";
  const auto* const found = std::ranges::find(kWords, std::string_view(name), &Words::name);
  if (found != kWords.end()) return *found;
  throw DataError(
      "the GGUF file cuts text into words as \"" + name + "\" does (tokenizer.ggml.pre), which is not supported", where,
      "encode the text elsewhere and pass token ids with --tokens");
}

/// ggml's kinds of tokens.
constexpr int kGgufNormal = 1, kGgufUnknown = 2, kGgufControl = 3, kGgufUserDefined = 4;

/// What SentencePiece writes for a space: U+2581.
constexpr const char* kSpaceMark = "\xE2\x96\x81";

struct Merge {
  double score = 0;
  std::size_t left_characters = 0, right_characters = 0;
  std::string_view left, right;
};

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

/// Every way to make a token of two others is a merge, ["left", "right"]. Those of tokens with the highest score come
/// first; among those of one token, those with the longer left part. tokens, types and scores: by id, of one length.
Json merges_by_score(std::span<const std::string> tokens, std::span<const int> types, std::span<const double> scores) {
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] == kGgufNormal || types[id] == kGgufUserDefined) ids.emplace(tokens[id], id);
  }
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    if (!ids.contains(token)) continue;
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      if (!begins_character(token[cut])) continue;
      const std::string_view left = token.substr(0, cut), right = token.substr(cut);
      if (!ids.contains(left) || !ids.contains(right)) continue;
      merges.push_back({scores[id], characters(left), characters(right), left, right});
    }
  }
  std::ranges::stable_sort(merges, [](const Merge& a, const Merge& b) {
    return std::tie(a.score, a.left_characters, a.right_characters) >
           std::tie(b.score, b.left_characters, b.right_characters);
  });
  Json list = Json::array();
  for (const Merge& merge : merges) list.push_back({std::string(merge.left), std::string(merge.right)});
  return list;
}

constexpr const char* kPassIds = "encode the text elsewhere and pass token ids with --tokens";

class TokenizerReader {
 public:
  explicit TokenizerReader(const std::filesystem::path& path) : model_(path), where_(path.string()) {}

  Json read() {
    const Json kind = value("model");
    if (kind.is_null()) {
      throw DataError("the GGUF file has no tokenizer (tokenizer.ggml.model is missing)", where_,
                      "pass token ids with --tokens, or name a file with a tokenizer");
    }
    if (kind != "gpt2" && kind != "llama") {
      throw DataError("the GGUF file's kind of tokenizer, " + gguf_text(kind) + ", is not supported", where_, kPassIds);
    }
    read_tokens();
    Json out{{"added_tokens", added_tokens()}, {"normalizer", nullptr}, {"pre_tokenizer", nullptr}};
    kind == "gpt2" ? make_byte_level(out) : make_sentencepiece(out);
    out["post_processor"] = prefix(kind == "llama");
    return out;
  }

 private:
  [[nodiscard]] Json value(const std::string& name) const { return model_.metadata().value("tokenizer.ggml." + name); }
  [[nodiscard]] bool flag(const std::string& name, bool otherwise) const {
    const Json found = value(name);
    if (!found.is_null() && !found.is_boolean()) fail("tokenizer.ggml." + name + " is neither true nor false");
    return found.is_null() ? otherwise : found.get<bool>();
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError("the GGUF file's tokenizer is not sound: " + what, where_, "fetch the file again");
  }

  void read_tokens() {
    const Json tokens = value("tokens"), types = value("token_type");
    if (!tokens.is_array()) fail("tokenizer.ggml.tokens is missing");
    for (const Json& token : tokens) {
      if (!token.is_string()) fail("tokenizer.ggml.tokens has what is no text");
      tokens_.push_back(token.get<std::string>());
    }
    types_.assign(tokens_.size(), kGgufNormal);
    if (types.is_null()) return;
    if (!types.is_array() || types.size() != tokens_.size()) fail("tokenizer.ggml.token_type has another length");
    std::ranges::transform(types, types_.begin(), [&](const Json& type) {
      if (!type.is_number_integer() || type < 0 || type > INT32_MAX)
        fail("tokenizer.ggml.token_type has what is no type");
      return type.get<int>();
    });
  }

  [[nodiscard]] Json added_tokens() const {
    const bool phi = model_.architecture() == "phi3" && value("model") == "llama";
    Json added = Json::array();
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if ((types_[id] != kGgufControl && types_[id] != kGgufUserDefined) || tokens_[id].empty()) continue;
      // Phi-3's marks of a chat take the white space behind them.
      const bool takes_right = phi && tokens_[id].starts_with("<|") && tokens_[id] != "<|endoftext|>";
      added.push_back({{"content", tokens_[id]}, {"id", id}, {"normalized", false}, {"rstrip", takes_right}});
    }
    return added;
  }

  [[nodiscard]] Json vocabulary() const {
    Json::object_t vocabulary;  // filled at its end, for it looks keys up one after the other
    for (std::size_t id = 0; id < tokens_.size(); ++id) vocabulary.emplace_back(tokens_[id], id);
    return vocabulary;
  }

  void make_byte_level(Json& out) {
    const Words& words = words_of(value("pre"), where_);
    begin_ = words.begin;
    Json steps = Json::array();
    const auto split = [&](const std::string& pattern) {
      steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}});
    };
    for (const char* pattern : words.patterns) {
      if (pattern != nullptr) split(pattern);
    }
    // Nothing merges across a character without a token: some vocabularies lack control characters. Those of the bytes
    // 0 to 0x20 and 0x7F are U+0100 to U+0121.
    std::string missing;
    for (int i = 0; i <= 0x21; ++i) {
      const std::string token{'\xC4', static_cast<char>(0x80 + i)};
      if (std::ranges::find(tokens_, token) == tokens_.end()) missing += fmt::format("\\x{:02x}", i <= 0x20 ? i : 0x7f);
    }
    if (!missing.empty()) split("[" + missing + "]");
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    out["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    const Json merges = value("merges");
    if (!merges.is_array()) fail("tokenizer.ggml.merges is missing");
    if (!std::ranges::all_of(merges, [](const Json& merge) { return merge.is_string(); })) {
      fail("tokenizer.ggml.merges has what is no text");
    }
    out["model"] = {{"type", "BPE"}, {"vocab", vocabulary()}, {"merges", merges}, {"ignore_merges", words.whole_words}};
  }

  void make_sentencepiece(Json& out) const {
    const Json replace{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}};
    Json steps = Json::array();
    if (flag("add_space_prefix", true)) steps.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
    steps.push_back(replace);
    out["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    const Json scores = value("scores");
    if (!scores.is_array() || scores.size() != tokens_.size()) fail("tokenizer.ggml.scores is missing or too short");
    const auto is_score = [](const Json& score) { return score.is_number() && std::isfinite(score.get<double>()); };
    if (!std::ranges::all_of(scores, is_score)) fail("tokenizer.ggml.scores has what is no number");
    out["model"] = {{"type", "BPE"},
                    {"vocab", vocabulary()},
                    {"merges", merges_by_score(tokens_, types_, scores.get<std::vector<double>>())},
                    {"byte_fallback", true},
                    {"fuse_unk", true}};
    const auto unknown = std::ranges::find(types_, kGgufUnknown);
    if (unknown != types_.end()) {
      out["model"]["unk_token"] = tokens_[static_cast<std::size_t>(unknown - types_.begin())];
    }
  }

  /// The token that begins every text, if the file wants one.
  [[nodiscard]] Json prefix(bool pieces) const {
    Json id = value("bos_token_id");
    if (!flag("add_bos_token", pieces || begin_)) return nullptr;
    if (id.is_null()) id = pieces ? 1 : 11;  // llama.cpp's
    if (!id.is_number_integer() || id < 0 || id >= tokens_.size()) fail("tokenizer.ggml.bos_token_id is no token");
    const std::string& token = tokens_[id.get<std::size_t>()];
    return {{"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", token}}}}, {{"Sequence", {{"id", "A"}}}}}},
            {"special_tokens", {{token, {{"ids", {id}}}}}}};
  }

  GgufModel model_;
  std::string where_;
  std::vector<std::string> tokens_;
  std::vector<int> types_;
  bool begin_ = false;
};

}  // namespace

Json gguf_tokenizer(const std::filesystem::path& path) { return TokenizerReader(path).read(); }

}  // namespace oscar
