// SPDX-License-Identifier: MIT
#include "model_input.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace oscar {

void add_model_input_options(CLI::App& command, ModelInput& input) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group("Input");
  };
  add("--model", input.model, "Checkpoint folder: config.json, *.safetensors, tokenizer.json")->type_name("DIR");
  add("--text", input.texts, "UTF-8 text; several files are joined")->type_name("FILE");
  add("--tokens", input.tokens, "Token ids: .npy (a vector, or one sequence a row) or .jsonl (one list a line)")
      ->type_name("FILE");
  add("--layers", input.layers, "Only these layers, like 0-3,7; default: all whose cache grows with the text")
      ->type_name("LIST");
  add("--max-tokens", input.limits.max_tokens, "Tokens to use at most; 0 = all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add("--seq-len", input.limits.seq_len, "Cut longer sequences into pieces of this length, at most the model's context")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add("--sequences", input.limits.max_sequences, "Sequences to use at most; 0 = all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

std::vector<TokenSequence> read_sequences(const ModelInput& input, const ModelConfig& config) {
  if (input.texts.empty() == input.tokens.empty()) {
    throw UsageError(input.texts.empty() ? "nothing to run the model on" : "--text and --tokens exclude each other", "",
                     "give either --text FILE... or --tokens FILE");
  }
  TokenLimits limits = input.limits;
  limits.seq_len = std::min(limits.seq_len, config.max_position_embeddings);
  return input.texts.empty() ? read_tokens(input.tokens, limits) : read_texts(input.model, input.texts, limits);
}

}  // namespace oscar
