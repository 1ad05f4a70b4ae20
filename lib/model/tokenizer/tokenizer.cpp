// SPDX-License-Identifier: MIT
#include "model/tokenizer/tokenizer.hpp"

#include "base/errors.hpp"
#include "base/places.hpp"
#include "model/gguf/gguf_model.hpp"
#include "model/tokenizer/tokenizer_file.hpp"
#include "model/tokenizer/unicode.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

bool is_piece_model(const fs::path& file) { return file.extension() == ".model"; }

}  // namespace

fs::path tokenizer_of(const fs::path& model) {
  if (is_gguf(model)) return model;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (place_exists(model / name)) return model / name;
  }
  throw DataError("the checkpoint has neither tokenizer.json nor tokenizer.model", model.string(),
                  "fetch the tokenizer too, or pass token ids with --tokens");
}

std::unordered_map<std::string, std::int32_t> token_names(const fs::path& file) {
  if (is_piece_model(file)) return piece_names(file);
  TokenizerFile read = read_tokenizer_file(file);
  std::unordered_map<std::string, std::int32_t> names = std::move(read.model.vocabulary);
  for (const AddedToken& token : read.added_tokens) names[token.content] = token.id;
  return names;
}

Tokenizer::Tokenizer(const fs::path& file)
    : encoder_(is_piece_model(file) ? make_piece_encoder(file) : make_json_encoder(file)) {}

Tokenizer::~Tokenizer() = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, const std::string& where, std::size_t enough) const {
  if (const auto offset = find_invalid_utf8(text)) {
    throw DataError("the text is not UTF-8 at byte " + std::to_string(*offset), where,
                    "convert it with iconv -t UTF-8");
  }
  return encoder_->encode(text, enough);
}

const std::vector<std::int32_t>& Tokenizer::prefix() const { return encoder_->prefix(); }

}  // namespace oscar
