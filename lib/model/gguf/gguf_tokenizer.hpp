// SPDX-License-Identifier: MIT
// The tokenizer in a GGUF file's metadata ("tokenizer.ggml.…") as the tokenizer.json of the checkpoint that the file
// was made from. Byte-level BPE ("gpt2") is cut into words as "tokenizer.ggml.pre" says; SentencePiece's BPE ("llama")
// merges by the scores of its pieces.
#pragma once

#include <filesystem>

#include "base/json.hpp"

namespace oscar {

/// Throws DataError: a file without a tokenizer, a kind of tokenizer or of words that is not supported, lists that do
/// not fit together.
[[nodiscard]] Json gguf_tokenizer(const std::filesystem::path& path);

}  // namespace oscar
