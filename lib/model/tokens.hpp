// SPDX-License-Identifier: MIT
// Token sequences for calibration and evaluation, from token files or from text and a checkpoint's tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "model/identity.hpp"
#include "model/runner.hpp"

namespace oscar {

struct TokenLimits {
  int seq_len = 4096;               // longer sequences are cut into pieces of this length
  std::int64_t max_tokens = 30000;  // in all; 0 = no limit
  std::int64_t max_sequences = 0;   // 0 = no limit
};

/// Of one block; see CalibrationData::blocks.
[[nodiscard]] std::string block_hash(std::span<const std::int32_t> ids);

/// `.npy` (int32/int64; 1-D, or 2-D with one sequence a row) or `.jsonl` (one list of ids a line).
[[nodiscard]] std::vector<TokenSequence> read_tokens(const std::filesystem::path& path, const TokenLimits& limits);
/// Text files (documents.hpp), encoded with the tokenizer of the checkpoint `model` (tokenizer_of). Plain files are
/// joined; lines of .jsonl files stay apart. Both are cut into sequences of at most seq_len, each of which starts with
/// what the tokenizer puts before texts.
[[nodiscard]] std::vector<TokenSequence> read_texts(const std::filesystem::path& model,
                                                    const std::vector<std::filesystem::path>& texts,
                                                    const TokenLimits& limits);
/// tokens, sequences and the hash defined in identity.hpp.
[[nodiscard]] CalibrationData describe(const std::vector<TokenSequence>& sequences);

}  // namespace oscar
