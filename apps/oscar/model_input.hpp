// SPDX-License-Identifier: MIT
// The options by which a command is told to run a model on text: --model, --text or --tokens, and how much of it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "model/config.hpp"
#include "model/tokens.hpp"

namespace oscar {

struct ModelInput {
  std::filesystem::path model, tokens;
  std::vector<std::filesystem::path> texts;
  std::string layers;  // as parse_layers reads it
  TokenLimits limits;
};

/// Adds --model, --text, --tokens, --layers, --max-tokens, --seq-len, --sequences.
void add_model_input_options(CLI::App& command, ModelInput& input);

/// The sequences to run, cut to the model's context at most. Throws UsageError unless exactly one of --text and
/// --tokens was given, and what the readers throw.
[[nodiscard]] std::vector<TokenSequence> read_sequences(const ModelInput& input, const ModelConfig& config);

}  // namespace oscar
