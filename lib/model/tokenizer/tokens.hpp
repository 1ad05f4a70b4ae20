// SPDX-License-Identifier: MIT
// Token sequences for calibration and evaluation, from token files or from text and a checkpoint's tokenizer.
// Text comes from files, pipes, stdin or addresses (which are fetched whole, base/places.hpp), no more than is wanted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model/config/identity.hpp"

namespace oscar {

using TokenSequence = std::vector<std::int32_t>;

struct TokenLimits {
  int seq_len = 4096;               // longer sequences are cut into pieces of this length
  std::int64_t max_tokens = 30000;  // in all; 0 = no limit
  std::int64_t max_sequences = 0;   // 0 = no limit
  bool* was_cut = nullptr;          // unless null: set to true where a sequence is longer than seq_len
};

/// Returns the digits that stand for one block in CalibrationData::blocks.
[[nodiscard]] std::string block_hash(std::span<const std::int32_t> ids);

enum class Pipes { kRefuse, kRead };

/// Reads token ids from `.npy` (int32/int64; 1-D, or 2-D with one sequence a row) or `.jsonl` (one list of ids a line);
/// lines may also come from a pipe, or from stdin ("-"), if pipes are read. Throws DataError for a damaged file, or a
/// pipe that is refused; UsageError for another kind of file.
[[nodiscard]] std::vector<TokenSequence> read_tokens(const std::filesystem::path& path, const TokenLimits& limits,
                                                     Pipes pipes = Pipes::kRefuse);
/// Reads text files, pipes and stdin ("-", plain text), encoded with the tokenizer of the checkpoint
/// `model` (tokenizer_of). Plain files are joined; documents stay apart. Both are cut into sequences of at most
/// seq_len, each of which starts with what the tokenizer puts before texts. No more is read than the limits need, and
/// at most 1 GiB of a plain file.
[[nodiscard]] std::vector<TokenSequence> read_texts(const std::filesystem::path& model,
                                                    const std::vector<std::filesystem::path>& texts,
                                                    const TokenLimits& limits);
/// Returns where each sequence begins if they are spread evenly over `context` positions, neighbours far from each
/// other (multiples of the golden ratio): then keys are seen as they stand at all positions. 0 for longer sequences.
[[nodiscard]] std::vector<std::int64_t> spread_over(std::int64_t context, const std::vector<TokenSequence>& sequences);
/// Counts tokens and sequences, and makes the hashes that config/identity.hpp defines.
[[nodiscard]] CalibrationData describe(const std::vector<TokenSequence>& sequences);

}  // namespace oscar
