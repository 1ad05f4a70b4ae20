// SPDX-License-Identifier: MIT
#include "model_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/errors.hpp"
#include "kernels/backend.hpp"
#include "tensor/npy.hpp"
#include "zoo/list.hpp"

namespace oscar {

void add_model_input_options(CLI::App& command, ModelInput& input) {
  const auto add = [&](const char* group, const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group(group);
  };
  const char *const shown = "Input", *const more = "More input";
  allow_address(add(shown, "--model", input.model,
                    "Checkpoint folder or GGUF file, or its address (hf://ORG/NAME[@REVISION], https://, http://): "
                    "streamed")
                    ->type_name("DIR"));
  allow_address(
      add(shown, "--text", input.texts,
          "UTF-8 text, joined, - is stdin; or .jsonl or .json with documents (\"text\", or a chat: \"messages\", "
          "\"conversations\"); may be pipes and addresses. Default: a small built-in mix")
          ->type_name("FILE"));
  add(shown, "--tokens", input.tokens,
      "Token ids: .npy (a vector, or one sequence a row) or .jsonl (one list a line; - is stdin)")
      ->type_name("FILE");
  add(shown, "--max-tokens", input.limits.max_tokens, "Tokens to use at most; 0 = all")
      ->check(kNonNegative)
      ->capture_default_str();
  add(more, "--seq-len", input.limits.seq_len,
      "Cut longer sequences into pieces of so many tokens; at most the model's context")
      ->check(kPositive)
      ->capture_default_str();
  add(more, "--sequences", input.limits.max_sequences, "Sequences to use at most; 0 = all")
      ->check(kNonNegative)
      ->capture_default_str();
  add(more, "--layers", input.layers, "Only these layers, like 0-3,7; default: all whose cache grows with the text")
      ->type_name("LIST");
  add(more, "--model-dtype", input.dtype, "What the model computes in; auto: float32 on the CPU, bfloat16 on a GPU")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}))
      ->capture_default_str();
}

std::unique_ptr<ModelRunner> open_input_model(const ModelInput& input, const Context& context) {
  Status& status = *context.status;
  DecoderOptions options{.device = context.common.device,
                         .dtype = input.dtype,
                         .notice = [&status](const std::string& text) { status.notice(text); }};
  if (options.device != "auto") return open_model(input.model, options);
  if (cuda_device_count() > 0) {
    try {
      options.device = "cuda";
      return open_model(input.model, options);
    } catch (const BackendUnavailable& error) {
      status.notice("the model runs on the CPU: " + std::string(error.what()));
    }
  }
  options.device = "cpu";
  return open_model(input.model, options);
}

std::unique_ptr<ModelRunner> open_exact_model(ModelInput input, const Context& context) {
  input.dtype = "float32";
  return open_input_model(input, context);
}

std::vector<TokenSequence> read_sequences(const ModelInput& input, const ModelConfig& config, Status& status) {
  if (!input.texts.empty() && !input.tokens.empty()) {
    throw UsageError("--text and --tokens exclude each other", "", "give either --text FILE... or --tokens FILE");
  }
  TokenLimits limits = input.limits;
  limits.seq_len = std::min(limits.seq_len, config.max_position_embeddings);
  if (!input.tokens.empty()) {
    bool was_cut = false;
    limits.was_cut = &was_cut;
    std::vector<TokenSequence> sequences = read_tokens(input.tokens, limits, Pipes::kRead);
    if (was_cut) status.notice(fmt::format("sequences are cut into pieces of {} tokens (--seq-len)", limits.seq_len));
    return sequences;
  }
  if (!input.texts.empty()) return read_texts(input.model, input.texts, limits);
  const std::filesystem::path mix = installed_zoo() / "calibration/mix.jsonl";
  if (!std::filesystem::exists(mix)) {
    throw UsageError("nothing to run the model on", "", "give either --text FILE... or --tokens FILE");
  }
  status.notice("the text is the built-in mix; give --text FILE for text like the model's own work");
  return read_texts(input.model, {mix}, limits);
}

void add_answer_options(CLI::App& command, AnswerFiles& files, const char* rows_help, const char* answers_help,
                        const char* group) {
  CLI::Option* rows = command.add_option(files.option, files.rows, rows_help)->type_name("FILE")->group(group);
  CLI::Option* answers = command.add_option(files.option + "-answers", files.answers, answers_help);
  rows->needs(answers->type_name("FILE")->group(group)->needs(rows));
  command.add_option("--max-" + files.option.substr(2) + "s", files.most, "Rows to use at most; 0 = all")
      ->needs(rows)
      ->check(kNonNegative)
      ->capture_default_str()
      ->group("More input");
}

void read_answers(const AnswerFiles& files, const ModelConfig& config, std::vector<TokenSequence>& rows,
                  std::vector<int>& lengths) {
  if (!files.given()) return;
  const std::int64_t longest = config.max_position_embeddings;
  rows = read_tokens(files.rows, {std::numeric_limits<int>::max(), 0, 0});
  const std::int64_t all = std::ssize(rows);
  if (files.most > 0) rows.resize(static_cast<std::size_t>(std::min(all, files.most)));
  for (std::size_t i = 0; i < rows.size(); ++i) {  // cut, it would be several rows
    if (std::ssize(rows[i]) <= longest) continue;
    throw DataError(fmt::format("a row of {} tokens does not fit the model's context of {}", rows[i].size(), longest),
                    fmt::format("{}, row {}", files.rows.string(), i), "give shorter rows");
  }
  const Tensor numbers = read_npy(files.answers);
  const bool integers = !is_activation_dtype(numbers.dtype) && numbers.dtype != DType::kF64;
  if (!integers || numbers.shape != std::vector{all}) {
    throw DataError(fmt::format("expected integers of shape [{}], one for each row of {}, found {} of {}", all,
                                files.rows.string(), shape_text(numbers.shape), name_of(numbers.dtype)),
                    files.answers.string(), "save the lengths with numpy as int32");
  }
  const std::vector<std::int64_t> given = numbers.to_int64();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (given[i] < 1 || given[i] >= std::ssize(rows[i])) {
      throw DataError(fmt::format("an answer of {} tokens does not fit a row of {}", given[i], rows[i].size()),
                      fmt::format("{}, row {}", files.answers.string(), i),
                      "give the number of tokens at the end of the row");
    }
    lengths.push_back(static_cast<int>(given[i]));
  }
}

}  // namespace oscar
