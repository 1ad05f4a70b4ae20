// SPDX-License-Identifier: MIT
// What tokenizer.json says, checked and in our terms, and the parts that it is made of: tokens that are found before a
// text is cut into words, and byte pair encoding. Tokens are byte strings: the printable stand-ins that byte-level
// tokenizers write for bytes are undone here.
// It also declares what a kind of tokenizer does behind Tokenizer (tokenizer.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/tokenizer/tokenizer.hpp"

namespace oscar {

struct AddedToken {
  static constexpr std::int32_t kNoId = -1;  // readers differ in which it gets: texts that have it are refused
  std::string content;
  std::int32_t id = 0;
  bool normalized = false;                       // looked for after normalization, not before
  bool takes_left = false, takes_right = false;  // white space beside it is part of it
};

/// Finds tokens in a text, such as "<|endoftext|>": leftmost first, the longest of those that start at the same place.
class AddedTokens {
 public:
  void add(const AddedToken& token);
  /// Calls between(text) and found(id) in order until one returns false. False if one did.
  bool split(std::string_view text, const std::function<bool(std::string_view)>& between,
             const std::function<bool(std::int32_t)>& found) const;

 private:
  [[nodiscard]] const AddedToken* match(std::string_view text) const;

  std::array<std::vector<AddedToken>, 256> by_first_byte_;
};

struct BpeModel {
  std::unordered_map<std::string, std::int32_t> vocabulary;  // ids of byte strings
  std::vector<std::pair<std::string, std::string>> merges;   // in order of rank
  bool ignore_merges = false;                                // a word that is a token is not merged together but taken
  /// Words start as bytes if `bytes` is set, otherwise as characters. A character that is no token becomes the tokens
  /// of its bytes ("<0x0A>") if `byte_fallback` is set. Any other byte or character without a token becomes `unknown`,
  /// or nothing if that is -1, as in Hugging Face's tokenizers.
  bool bytes = true;
  bool byte_fallback = false;
  std::int32_t unknown = -1;
  bool fuse_unknown = false;  // several in a row are one
};

/// Byte pair encoding of one word: start from its bytes, or its characters, and as long as two neighbours have a merge,
/// apply the merge of lowest rank, leftmost first. O(n log n) in the length of the word. Non-goals: dropout,
/// word-boundary markers.
class BytePairEncoder {
 public:
  /// Throws DataError naming `where` if byte fallback lacks a byte's token, or a merge lacks that of a part or of its
  /// result.
  BytePairEncoder(BpeModel model, const std::string& where);

  /// Appends the ids of `word`.
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const;

 private:
  struct Merge {
    std::int32_t rank = 0, result = 0;
  };
  [[nodiscard]] const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  void find_byte_ids(const std::string& where);
  /// Ids to start from.
  [[nodiscard]] std::vector<std::int32_t> start(std::string_view word) const;
  void start_character(std::string_view character, std::vector<std::int32_t>& ids) const;
  void start_unknown(std::vector<std::int32_t>& ids) const;

  BpeModel model_;
  std::array<std::int32_t, 256> byte_ids_{};         // -1: the byte has no token
  std::unordered_map<std::uint64_t, Merge> merges_;  // key: left id << 32 | right id
};

struct NormalizerStep {
  enum class Kind { kNfc, kPrepend, kReplace };
  Kind kind = Kind::kNfc;
  std::string from, to;  // what is prepended: to
};

/// How text is cut into words.
struct SplitStep {
  enum class Kind {
    kIsolated,  // matches of the expression and what lies between them
    kMatches,   // matches alone
    kAfter,     // after each place where `pattern` stands
    kMetaspace  // nothing, or before each `pattern`; spaces become `pattern`
  };
  Kind kind = Kind::kIsolated;
  std::string pattern;
  enum class Prepend { kNever, kFirst, kAlways };
  Prepend prepend = Prepend::kNever;  // `pattern`, of kMetaspace
  bool cut = true;                    // of kMetaspace
};

struct TokenizerFile {
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  std::vector<SplitStep> splits;     // applied one after the other
  std::vector<std::int32_t> prefix;  // ids before every text, for example begin-of-sequence
  BpeModel model;
};

/// Reads tokenizer.json, or what a GGUF file says in its place. Throws DataError that names the file and the member.
[[nodiscard]] TokenizerFile read_tokenizer_file(const std::filesystem::path& path);

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  /// Ids of valid UTF-8; stops soon after `enough` with a prefix of them.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text, std::size_t enough) const = 0;
  /// See Tokenizer::prefix.
  [[nodiscard]] virtual const std::vector<std::int32_t>& prefix() const = 0;
};

/// Reads a tokenizer.json, by code of ours. Throws DataError for a missing or malformed file, and for a feature that is
/// not supported.
[[nodiscard]] std::unique_ptr<const TextEncoder> make_json_encoder(const std::filesystem::path& tokenizer_json);

/// Reads a tokenizer.model of SentencePiece (unigram or BPE), by its library, and the tokenizer_config.json beside it.
/// Throws DataError for damaged files, BackendUnavailable if this build or machine lacks the library.
[[nodiscard]] std::unique_ptr<const TextEncoder> make_piece_encoder(const std::filesystem::path& tokenizer_model);
/// The names of its pieces and of the tokens that were added to them, and their ids.
[[nodiscard]] std::unordered_map<std::string, std::int32_t> piece_names(const std::filesystem::path& tokenizer_model);

// A model of SentencePiece as its library runs it. The library is behind a plug-in, oscar_sentencepiece.so, which a
// build without libsentencepiece lacks; it is opened with the first such model. Non-goals: sampling, decoding,
// training.

struct Piece {
  std::string text;  // a space is U+2581
  /// Never made from text by the library: <s>, </s>, <unk>.
  bool special = false;
};

class PieceModel {
 public:
  virtual ~PieceModel() = default;
  /// Returns all pieces in the order of their ids.
  [[nodiscard]] virtual std::vector<Piece> pieces() const = 0;
  /// Id of begin-of-sequence; -1 if it has none.
  [[nodiscard]] virtual std::int32_t begin_id() const = 0;
  /// Appends the ids of a text.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
};

/// content: of the file. space_before: texts get a space in front if the model says so; else they never do. Throws
/// DataError naming `where` if it is no such model, BackendUnavailable if plug-in or library are missing.
[[nodiscard]] std::unique_ptr<const PieceModel> open_piece_model(const std::string& content, bool space_before,
                                                                 const std::string& where);

}  // namespace oscar
