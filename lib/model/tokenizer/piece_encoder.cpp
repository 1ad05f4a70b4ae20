// SPDX-License-Identifier: MIT
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/json.hpp"
#include "base/places.hpp"
#include "base/plugin.hpp"
#include "base/text.hpp"
#include "model/tokenizer/tokenizer_file.hpp"

namespace oscar {

std::unique_ptr<const PieceModel> open_piece_model(const std::string& content, bool space_before,
                                                   const std::string& where) {
  using Factory = const PieceModel* (*)(const std::string&, bool, const std::string&);
  static const auto factory = reinterpret_cast<Factory>(plugin_symbol(
      "sentencepiece", "oscar_open_piece_model",
      "tokenizer.model needs the library SentencePiece: install libsentencepiece-dev and build oscar again, put the "
      "model's tokenizer.json beside it, or pass token ids with --tokens"));
  return std::unique_ptr<const PieceModel>(factory(content, space_before, where));
}

// Text around added tokens goes to SentencePiece's library, in one piece: its models cut text where they like.

namespace {

namespace fs = std::filesystem;

// What the files beside a tokenizer.model say about it: tokenizer_config.json and added_tokens.json, as Hugging Face
// transformers read them. Both may be missing.
struct PieceSettings {
  std::optional<bool> add_begin;    // "add_bos_token"
  std::string begin;                // "bos_token"; empty: the model's own
  std::vector<AddedToken> added;    // "added_tokens_decoder", then added_tokens.json
  bool space_before = true;         // "add_prefix_space": false turns off what the model says
  bool space_before_parts = false;  // "legacy": a space also after added tokens, not only where the text begins
};

[[noreturn]] void refuse(const fs::path& file, const std::string& member, const std::string& what) {
  throw DataError("\"" + member + "\" " + what, file.string(), "fetch the tokenizer again");
}

Json read_object(const fs::path& file) {
  Json json = read_json(file);
  if (!json.is_object()) throw DataError("is not a JSON object", file.string(), "fetch the tokenizer again");
  return json;
}

/// nullopt: there is no such member, or it is null.
std::optional<bool> flag(const Json& json, const char* name, const fs::path& file) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) return std::nullopt;
  if (!found->is_boolean()) refuse(file, name, "is neither true nor false");
  return found->get<bool>();
}

/// A token is its text, or an object with "content".
std::string content_of(const Json& token) {
  const Json& content = token.is_object() && token.contains("content") ? token.at("content") : token;
  return content.is_string() ? content.get<std::string>() : "";
}

std::int32_t id_of(const std::string& digits, const fs::path& file) {
  const std::optional<std::int32_t> id = parse_number(digits);
  if (!id) refuse(file, "added_tokens_decoder", "has the id \"" + digits + "\"");
  return *id;
}

void read_decoder(const Json& tokens, const fs::path& file, PieceSettings& settings) {
  if (!tokens.is_object()) refuse(file, "added_tokens_decoder", "is not an object");
  for (const auto& [digits, token] : tokens.items()) {
    const std::string content = content_of(token);
    if (content.empty()) refuse(file, "added_tokens_decoder", "has an entry without content");
    const auto is = [&, &token = token](const char* name) {
      return token.is_object() && flag(token, name, file).value_or(false);
    };
    if (is("single_word")) {
      throw DataError("\"added_tokens_decoder\" with \"single_word\" (" + content + ") is not supported", file.string(),
                      "encode the text elsewhere and pass token ids with --tokens");
    }
    settings.added.push_back({content, id_of(digits, file), false, is("lstrip"), is("rstrip")});
  }
}

void read_config(const fs::path& file, PieceSettings& settings) {
  const Json json = read_object(file);
  settings.add_begin = flag(json, "add_bos_token", file);
  settings.space_before = flag(json, "add_prefix_space", file).value_or(true);
  settings.space_before_parts = flag(json, "legacy", file).value_or(false);
  if (json.contains("bos_token")) settings.begin = content_of(json.at("bos_token"));
  if (json.contains("added_tokens_decoder")) read_decoder(json.at("added_tokens_decoder"), file, settings);
}

void read_added(const fs::path& file, PieceSettings& settings) {
  const Json tokens = read_object(file);
  for (const auto& [content, id] : tokens.items()) {
    if (!id.is_number_unsigned() || id > Json(0x7fffffff) || content.empty()) {
      refuse(file, content, "has no id from 0 to 2^31 - 1");
    }
    settings.added.push_back({content, id.get<std::int32_t>()});
  }
}

/// folder: of the checkpoint. Throws DataError naming file and member.
PieceSettings read_piece_settings(const fs::path& folder) {
  PieceSettings settings;
  const fs::path config = folder / "tokenizer_config.json", added = folder / "added_tokens.json";
  if (place_exists(config)) read_config(config, settings);
  if (place_exists(added)) read_added(added, settings);
  return settings;
}

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

using Names = std::unordered_map<std::string, std::int32_t>;

/// What files beside the model say goes before what it says itself.
Names name_all(const std::vector<Piece>& pieces, const PieceSettings& settings) {
  Names names;
  for (const AddedToken& token : settings.added) names.try_emplace(token.content, token.id);
  for (std::size_t id = 0; id < pieces.size(); ++id) names.try_emplace(pieces[id].text, static_cast<std::int32_t>(id));
  return names;
}

bool puts_space_before(const PieceModel& model, const std::vector<Piece>& pieces) {
  std::vector<std::int32_t> ids;
  model.encode("a", ids);
  return !ids.empty() && pieces.at(static_cast<std::size_t>(ids.front())).text.starts_with(kSpaceMark);
}

class PieceEncoder final : public TextEncoder {
 public:
  explicit PieceEncoder(const fs::path& file) {
    const std::string content = place_text(file), where = file.string();
    const PieceSettings settings = read_piece_settings(file.parent_path());
    first_ = open_piece_model(content, settings.space_before, where);
    const std::vector<Piece> pieces = first_->pieces();
    if (!settings.space_before_parts && puts_space_before(*first_, pieces)) {
      inner_ = open_piece_model(content, false, where);
    }
    for (const AddedToken& token : settings.added) added_.add(token);
    const Names names = name_all(pieces, settings);
    for (const Piece& piece : pieces) {
      if (piece.special && !piece.text.empty()) added_.add({piece.text, names.at(piece.text)});
    }
    set_prefix(settings, names, where);
  }

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, std::size_t enough) const override {
    std::vector<std::int32_t> ids;
    bool first = true;
    added_.split(
        text,
        [&](std::string_view part) {
          (std::exchange(first, false) || !inner_ ? *first_ : *inner_).encode(part, ids);
          if (ids.size() > enough) ids.resize(enough);
          return ids.size() < enough;
        },
        [&](std::int32_t id) {
          first = false;
          ids.push_back(id);
          return ids.size() < enough;
        });
    return ids;
  }

  [[nodiscard]] const std::vector<std::int32_t>& prefix() const override { return prefix_; }

 private:
  /// Models begin texts unless a file says otherwise, as Llama's and Gemma's tokenizers do.
  void set_prefix(const PieceSettings& settings, const Names& names, const std::string& where) {
    std::int32_t begin = first_->begin_id();
    if (!settings.begin.empty()) {
      const auto found = names.find(settings.begin);
      begin = found != names.end() ? found->second : -1;
    }
    if (!settings.add_begin.value_or(begin >= 0)) return;
    if (begin < 0) {
      throw DataError("\"add_bos_token\" is true, but the model has no such token" +
                          (settings.begin.empty() ? "" : " as \"" + settings.begin + "\""),
                      where, "fetch the tokenizer again, with its tokenizer_config.json");
    }
    prefix_ = {begin};
  }

  std::unique_ptr<const PieceModel> first_, inner_;  // inner: of parts in which no text begins, where that differs
  AddedTokens added_;
  std::vector<std::int32_t> prefix_;
};

}  // namespace

std::unique_ptr<const TextEncoder> make_piece_encoder(const fs::path& tokenizer_model) {
  return std::make_unique<PieceEncoder>(tokenizer_model);
}

std::unordered_map<std::string, std::int32_t> piece_names(const fs::path& tokenizer_model) {
  const auto model = open_piece_model(place_text(tokenizer_model), true, tokenizer_model.string());
  return name_all(model->pieces(), read_piece_settings(tokenizer_model.parent_path()));
}

}  // namespace oscar
