// SPDX-License-Identifier: MIT
// The options by which a command is told to run a model on text: --model, --text or --tokens, how much of it, and
// probes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/status.hpp"
#include "model/config/config.hpp"
#include "model/run/runner.hpp"
#include "model/tokenizer/tokens.hpp"
#include "options.hpp"

namespace oscar {

struct ModelInput {
  std::filesystem::path model, tokens;
  std::vector<std::filesystem::path> texts;
  std::string layers;  // as parse_layers reads it
  TokenLimits limits;
  std::string dtype = "auto";  // DecoderOptions::dtype
};

/// Adds --model, --model-dtype, --text, --tokens, --layers, --max-tokens, --seq-len, --sequences.
void add_model_input_options(CLI::App& command, ModelInput& input);

/// Opens --model where --device says, to compute in --model-dtype: auto takes a GPU if there is one that libtorch can
/// use, and says so if it falls back.
[[nodiscard]] std::unique_ptr<ModelRunner> open_input_model(const ModelInput& input, const Context& context);
/// Opens the model in float32, for commands that compare a model's predictions: rounding to bfloat16 moves them more
/// than a good cache does.
[[nodiscard]] std::unique_ptr<ModelRunner> open_exact_model(ModelInput input, const Context& context);

/// The sequences to run, cut to the model's context at most; of the built-in mix of texts if neither --text nor
/// --tokens was given. Throws UsageError if both were, and what the readers throw.
[[nodiscard]] std::vector<TokenSequence> read_sequences(const ModelInput& input, const ModelConfig& config,
                                                        Status& status);

/// Files of probes: rows of token ids that end with an answer, and the lengths of the answers.
struct AnswerFiles {
  std::string option;  // "--needle"
  std::filesystem::path rows = {}, answers = {};
  std::int64_t most = 0;

  [[nodiscard]] bool given() const { return !rows.empty(); }
};

/// Adds --NAME and --NAME-answers, of files.option "--NAME", to a group of help, and --max-NAMEs to "More input"; none
/// goes without the others.
void add_answer_options(CLI::App& command, AnswerFiles& files, const char* rows_help, const char* answers_help,
                        const char* group);

/// Reads the first files.most rows (0: all) and the lengths of their answers. Reads nothing if no file is given. Throws
/// DataError for a row that the model's context does not hold, and what the readers of tokens and of .npy files throw.
void read_answers(const AnswerFiles& files, const ModelConfig& config, std::vector<TokenSequence>& rows,
                  std::vector<int>& lengths);

}  // namespace oscar
