// SPDX-License-Identifier: MIT
#include "model/tokenizer/piece_settings.hpp"

#include <charconv>

#include "base/errors.hpp"
#include "base/json.hpp"
#include "base/places.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

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
  std::int32_t id = -1;
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, id);
  if (error != std::errc() || stopped != end || id < 0) {
    refuse(file, "added_tokens_decoder", "has the id \"" + digits + "\"");
  }
  return id;
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

}  // namespace

PieceSettings read_piece_settings(const fs::path& folder) {
  PieceSettings settings;
  const fs::path config = folder / "tokenizer_config.json", added = folder / "added_tokens.json";
  if (place_exists(config)) read_config(config, settings);
  if (place_exists(added)) read_added(added, settings);
  return settings;
}

}  // namespace oscar
