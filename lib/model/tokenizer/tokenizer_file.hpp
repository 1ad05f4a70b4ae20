// SPDX-License-Identifier: MIT
// What tokenizer.json says, checked and in our terms. Tokens are byte strings: the printable stand-ins that byte-level
// tokenizers write for bytes are undone here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/tokenizer/added_tokens.hpp"
#include "model/tokenizer/bpe.hpp"

namespace oscar {

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

}  // namespace oscar
