// SPDX-License-Identifier: MIT
// The options that name files of probes: rows of token ids that end with an answer, and the lengths of the answers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "model/config/config.hpp"
#include "model/run/runner.hpp"

namespace oscar {

struct AnswerFiles {
  std::string option;  // "--needle"
  std::filesystem::path rows = {}, answers = {};
  std::int64_t most = 0;

  [[nodiscard]] bool given() const { return !rows.empty(); }
};

/// Adds the options --NAME, --NAME-answers and --max-NAMEs of files.option, "--NAME".
void add_answer_options(CLI::App& command, AnswerFiles& files, const std::string& rows_help,
                        const std::string& answers_help, const std::string& plural_name);

/// Throws UsageError if one of the two files is given without the other.
void check_usage(const AnswerFiles& files);

/// Reads the first files.most rows (0: all), cut to the model's context, and the lengths of their answers. Reads
/// nothing if no file is given. Throws what the readers of tokens and of .npy files throw.
void read_answers(const AnswerFiles& files, const ModelConfig& config, std::vector<TokenSequence>& rows,
                  std::vector<int>& lengths);

}  // namespace oscar
