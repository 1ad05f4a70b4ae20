// SPDX-License-Identifier: MIT
#include "model/tokenizer/tokenizer_file.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <unordered_set>

#include "base/errors.hpp"
#include "base/json.hpp"
#include "base/places.hpp"
#include "base/text.hpp"
#include "model/gguf/gguf_model.hpp"

namespace oscar {
namespace {

// The pattern that ByteLevel applies itself when "use_regex" is set.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Each byte's stand-in: itself if it is printable Latin-1, else the code points from 256 on, in order.
std::unordered_map<char32_t, char> bytes_of_stand_ins() {
  std::unordered_map<char32_t, char> bytes;
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    bytes[printable ? byte : next++] = static_cast<char>(byte);
  }
  return bytes;
}

/// Undoes the stand-ins; nullopt if a character is none. All of them have at most two bytes in UTF-8.
std::optional<std::string> bytes_of_token(const std::string& token) {
  static const std::unordered_map<char32_t, char> kBytes = bytes_of_stand_ins();
  std::string bytes;
  for (std::size_t i = 0; i < token.size(); ++i) {
    char32_t code_point = static_cast<unsigned char>(token[i]);
    if (code_point >= 0xe0) return std::nullopt;
    if (code_point >= 0x80 && i + 1 < token.size()) {
      code_point = (code_point & 0x1fU) << 6 | (static_cast<unsigned char>(token[++i]) & 0x3fU);
    }
    const auto found = kBytes.find(code_point);
    if (found == kBytes.end()) return std::nullopt;
    bytes += found->second;
  }
  return bytes;
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : path_(path.string()),
        root_(is_gguf(path) ? gguf_tokenizer(path) : read_json(path)),
        config_(is_gguf(path) ? Json() : read_config(path.parent_path() / "tokenizer_config.json")) {}

  TokenizerFile read() {
    if (!root_.is_object()) fail("the file", "is not a JSON object");
    read_added_tokens(member(root_, "added_tokens"));
    read_added_tokens(added_by_config());
    add_named_tokens();
    read_normalizer(member(root_, "normalizer"), "normalizer");
    const Json& pre_tokenizer = member(root_, "pre_tokenizer");
    if (!pre_tokenizer.is_null()) read_pre_tokenizer(pre_tokenizer, "pre_tokenizer");
    if (byte_level_ && flag(config_, "add_prefix_space") && !follows_file(text(config_, "tokenizer_class"))) {
      unsupported("add_prefix_space", "in tokenizer_config.json");
    }
    read_post_processor(member(root_, "post_processor"));
    read_model(member(root_, "model"));
    number_added_tokens();
    return std::move(file_);
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw DataError("\"" + name + "\" " + what, path_, "fetch the tokenizer again");
  }
  [[noreturn]] void unsupported(const std::string& name, const std::string& what) const {
    throw DataError("\"" + name + "\" " + what + " is not supported", path_,
                    "encode the text elsewhere and pass token ids with --tokens");
  }

  static std::string text(const Json& parent, const char* name) {
    const Json& value = member(parent, name);
    return value.is_string() ? value.get<std::string>() : "";
  }
  static bool flag(const Json& parent, const char* name) {
    const Json& value = member(parent, name);
    return value.is_boolean() && value.get<bool>();
  }
  std::int32_t id(const Json& value, const std::string& name) const {
    if (!value.is_number_integer() || value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
      fail(name, "has an id that is not a number from 0 to 2^31 - 1");
    }
    return value.get<std::int32_t>();
  }

  /// Null: there is none.
  static Json read_config(const std::filesystem::path& file) {
    const std::optional<std::string> content = optional_text(file);
    return content ? parse_json(*content, file.string()) : Json();
  }

  /// The added tokens of tokenizer_config.json, by their ids there.
  [[nodiscard]] Json added_by_config() const {
    std::map<int, Json> by_id;
    for (const auto& [number, token] : member(config_, "added_tokens_decoder").items()) {
      const std::optional<int> own = parse_number(number);
      if (!own || text(token, "content").empty()) {
        fail("added_tokens_decoder", "has a token without a number or content");
      }
      (by_id[*own] = token)["id"] = *own;
    }
    Json tokens = Json::array();
    for (const auto& [number, token] : by_id) tokens.push_back(token);
    return tokens;
  }

  /// What comes later says how a token that is there already takes part.
  void read_added_tokens(const Json& tokens) {
    if (!tokens.is_null() && !tokens.is_array()) fail("added_tokens", "is not a list");
    std::unordered_map<std::string, std::size_t> places;
    for (const AddedToken& token : file_.added_tokens) places.emplace(token.content, places.size());
    for (const Json& token : tokens) {
      const std::string content = text(token, "content");
      if (content.empty()) fail("added_tokens", "has an entry without content");
      if (flag(token, "single_word")) unsupported("added_tokens", "with \"single_word\" (" + content + ")");
      const AddedToken added{content, id(member(token, "id"), "added_tokens"), flag(token, "normalized"),
                             flag(token, "lstrip"), flag(token, "rstrip")};
      if (const auto [place, is_new] = places.emplace(content, places.size()); is_new) {
        file_.added_tokens.push_back(added);
      } else {
        file_.added_tokens[place->second] = added;
      }
    }
  }

  /// Adds the tokens that tokenizer_config.json names and no list has, as transformers does: without an id.
  void add_named_tokens() {
    std::vector<Json> named;
    for (const char* name : {"bos", "eos", "unk", "sep", "pad", "cls", "mask"}) {
      named.push_back(member(config_, std::string(name) + "_token"));
    }
    for (const char* list : {"additional_special_tokens", "extra_special_tokens"}) {
      for (const Json& token : member(config_, list)) named.push_back(token);
    }
    std::unordered_set<std::string> known{""};
    for (const AddedToken& token : file_.added_tokens) known.insert(token.content);
    for (const Json& token : named) {
      const std::string content = token.is_string() ? token.get<std::string>() : text(token, "content");
      if (!known.insert(content).second) continue;
      file_.added_tokens.push_back(
          {content, AddedToken::kNoId, flag(token, "normalized"), flag(token, "lstrip"), flag(token, "rstrip")});
    }
  }

  /// Whether a class of transformers leaves it to tokenizer.json whether texts begin with a space.
  static bool follows_file(const std::string& name) {
    return name.starts_with("PreTrainedTokenizer") || name.starts_with("Llama") || name == "TokenizersBackend";
  }

  /// An added token has its id in the vocabulary; others count on from there, whatever the file says: so does Hugging
  /// Face tokenizers. What is named without an id gets none.
  void number_added_tokens() {
    const Json& vocabulary = member(member(root_, "model"), "vocab");
    auto next = static_cast<std::int32_t>(vocabulary.size());
    for (AddedToken& token : file_.added_tokens) {
      const auto known = vocabulary.find(token.content);
      if (known != vocabulary.end()) {
        token.id = id(*known, "model.vocab");
      } else if (token.id != AddedToken::kNoId) {
        token.id = next;
      }
      next = std::max(next, token.id + 1);
    }
  }

  /// The members of a "Sequence", each under its name; or the step itself.
  template <class F>
  void for_each_step(const Json& step, const char* list, const std::string& name, const F& f) {
    if (text(step, "type") != "Sequence") return f(step, name);
    const Json& steps = member(step, list);
    if (!steps.is_array()) fail(name + "." + list, "is not a list");
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (text(steps[i], "type") == "Sequence") unsupported(name, "with a Sequence inside a Sequence");
      f(steps[i], name + "." + list + "[" + std::to_string(i) + "]");
    }
  }

  void read_normalizer(const Json& normalizer, const std::string& whole) {
    constexpr double kMaxGrowth = 16;
    double growth = 1;
    if (normalizer.is_null()) return;
    for_each_step(normalizer, "normalizers", whole, [&](const Json& step, const std::string& name) {
      const std::string type = text(step, "type"), from = text(member(step, "pattern"), "String");
      if (type == "NFC") {
        file_.normalizer.push_back({NormalizerStep::Kind::kNfc, "", ""});
      } else if (type == "Prepend") {
        file_.normalizer.push_back({NormalizerStep::Kind::kPrepend, "", text(step, "prepend")});
      } else if (type == "Replace" && !from.empty()) {
        const std::string to = text(step, "content");
        growth *= std::max(1.0, static_cast<double>(to.size()) / static_cast<double>(from.size()));
        if (growth > kMaxGrowth) unsupported(name, "that makes texts more than 16 times as long");
        file_.normalizer.push_back({NormalizerStep::Kind::kReplace, from, to});
      } else {
        unsupported(name, member(step, "type").dump());
      }
    });
  }

  /// Tokens that a template puts before a text; what comes after it is left out.
  void read_post_processor(const Json& post) {
    if (post.is_null()) return;
    for_each_step(post, "processors", "post_processor", [&](const Json& step, const std::string& name) {
      const std::string type = text(step, "type");
      if (type == "ByteLevel") return;
      if (type != "TemplateProcessing") unsupported(name, member(step, "type").dump());
      for (const Json& part : member(step, "single")) {
        if (part.contains("Sequence")) break;
        const Json& ids =
            member(member(member(step, "special_tokens"), text(member(part, "SpecialToken"), "id").c_str()), "ids");
        if (!ids.is_array()) fail(name + ".single", "names a token without ids");
        for (const Json& value : ids) file_.prefix.push_back(id(value, name));
      }
    });
  }

  void read_pre_tokenizer(const Json& whole, const std::string& whole_name) {
    for_each_step(whole, "pretokenizers", whole_name, [&](const Json& step, const std::string& name) {
      const std::string type = text(step, "type");
      if (byte_level_) unsupported(name, "after ByteLevel");
      if (type == "Split") {
        read_split(step, name);
      } else if (type == "Digits") {
        split(SplitStep::Kind::kIsolated, flag(step, "individual_digits") ? "\\p{N}" : "\\p{N}+");
      } else if (type == "Metaspace") {
        read_metaspace(step, name);
      } else if (type == "ByteLevel") {
        if (flag(step, "add_prefix_space")) unsupported(name, "with add_prefix_space");
        const Json& use_regex = member(step, "use_regex");  // absent means true
        if (use_regex.is_null() || flag(step, "use_regex")) split(SplitStep::Kind::kIsolated, kByteLevelPattern);
        byte_level_ = true;
      } else {
        unsupported(name, member(step, "type").dump());
      }
    });
  }

  void split(SplitStep::Kind kind, const std::string& pattern) {
    file_.splits.push_back({.kind = kind, .pattern = pattern});
  }

  void read_split(const Json& step, const std::string& name) {
    const std::string regex = text(member(step, "pattern"), "Regex"), literal = text(member(step, "pattern"), "String");
    const std::string behavior = text(step, "behavior");
    if (!literal.empty() && behavior == "MergedWithPrevious" && !flag(step, "invert")) {
      return split(SplitStep::Kind::kAfter, literal);
    }
    if (regex.empty()) unsupported(name + ".pattern", "without a Regex");
    if (behavior == "Removed" && flag(step, "invert")) return split(SplitStep::Kind::kMatches, regex);
    if (behavior != "Isolated") unsupported(name + ".behavior", member(step, "behavior").dump());
    if (flag(step, "invert")) unsupported(name + ".invert", "true");
    split(SplitStep::Kind::kIsolated, regex);
  }

  void read_metaspace(const Json& step, const std::string& name) {
    const std::string scheme = member(step, "prepend_scheme").is_null() ? "always" : text(step, "prepend_scheme");
    SplitStep out{.kind = SplitStep::Kind::kMetaspace, .pattern = text(step, "replacement")};
    out.cut = member(step, "split").is_null() || flag(step, "split");
    if (out.pattern.empty()) fail(name, "has no replacement");
    if (scheme != "never" && member(step, "add_prefix_space") == false) {
      fail(name, "has \"add_prefix_space\": false and a \"prepend_scheme\" that is not \"never\"");
    }
    if (scheme == "first") {
      out.prepend = SplitStep::Prepend::kFirst;
    } else if (scheme == "always") {
      out.prepend = SplitStep::Prepend::kAlways;
    } else if (scheme != "never") {
      unsupported(name + ".prepend_scheme", member(step, "prepend_scheme").dump());
    }
    file_.splits.push_back(out);
  }

  void read_model(const Json& model) {
    if (text(model, "type") != "BPE") unsupported("model.type", member(model, "type").dump());
    const Json& dropout = member(model, "dropout");
    if (!dropout.is_null() && dropout != 0) unsupported("model.dropout", dropout.dump());
    BpeModel& out = file_.model;
    out.bytes = byte_level_;
    out.byte_fallback = flag(model, "byte_fallback");
    out.fuse_unknown = flag(model, "fuse_unk");
    if (byte_level_ && out.byte_fallback) unsupported("model.byte_fallback", "true, with ByteLevel,");
    const std::string unknown = text(model, "unk_token");
    if (!byte_level_ && !out.byte_fallback && unknown.empty()) {
      unsupported("pre_tokenizer", "without ByteLevel, or a model with byte_fallback or unk_token,");
    }
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!text(model, name).empty()) unsupported("model." + std::string(name), member(model, name).dump());
    }
    out.ignore_merges = flag(model, "ignore_merges");
    const Json& vocabulary = member(model, "vocab");
    if (!vocabulary.is_object()) fail("model.vocab", "is not an object");
    for (const auto& [token, value] : vocabulary.items()) {
      // A token with other characters than stand-ins can come from no text: it is an added token.
      if (auto bytes = bytes_of(token)) out.vocabulary[std::move(*bytes)] = id(value, "model.vocab");
    }
    if (!unknown.empty() && out.vocabulary.contains(unknown)) out.unknown = out.vocabulary.at(unknown);
    const Json& merges = member(model, "merges");
    if (!merges.is_array()) fail("model.merges", "is not a list");
    for (const Json& merge : merges) read_merge(merge);
  }

  [[nodiscard]] std::optional<std::string> bytes_of(const std::string& token) const {
    return byte_level_ ? bytes_of_token(token) : token;
  }

  /// "a b" or ["a", "b"]: the stand-in of a space is not a space.
  void read_merge(const Json& merge) {
    const std::string name = "model.merges[" + std::to_string(file_.model.merges.size()) + "]";
    std::string left, right;
    if (merge.is_string()) {
      const std::string pair = merge.get<std::string>();
      const std::size_t space = pair.find(' ');
      if (space == std::string::npos) fail(name, "is not a pair");
      left = pair.substr(0, space);
      right = pair.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      fail(name, "is not a pair");
    }
    auto left_bytes = bytes_of(left), right_bytes = bytes_of(right);
    if (!left_bytes || !right_bytes) fail(name, "is not in the byte-level alphabet");
    file_.model.merges.emplace_back(std::move(*left_bytes), std::move(*right_bytes));
  }

  std::string path_;
  Json root_, config_;
  TokenizerFile file_;
  bool byte_level_ = false;
};

}  // namespace

TokenizerFile read_tokenizer_file(const std::filesystem::path& path) { return Reader(path).read(); }

}  // namespace oscar
