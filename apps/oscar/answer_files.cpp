// SPDX-License-Identifier: MIT
#include "answer_files.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "model/tokenizer/tokens.hpp"
#include "numbers.hpp"
#include "tensor/npy.hpp"

namespace oscar {

void add_answer_options(CLI::App& command, AnswerFiles& files, const std::string& rows_help,
                        const std::string& answers_help, const std::string& plural_name) {
  command.add_option(files.option, files.rows, rows_help)->type_name("FILE")->group("Input");
  command.add_option(files.option + "-answers", files.answers, answers_help)->type_name("FILE")->group("Input");
  std::string subject = plural_name;
  subject.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(subject.front())));
  command.add_option("--max-" + files.option.substr(2) + "s", files.most, subject + " to use at most; 0 = all")
      ->check(kNonNegative)
      ->capture_default_str()
      ->group("Input");
}

void check_usage(const AnswerFiles& files) {
  if (files.rows.empty() == files.answers.empty()) return;
  throw UsageError(files.option + " and " + files.option + "-answers belong together", files.option, "give both");
}

void read_answers(const AnswerFiles& files, const ModelConfig& config, std::vector<TokenSequence>& rows,
                  std::vector<int>& lengths) {
  if (!files.given()) return;
  const std::int64_t longest = config.max_position_embeddings;
  rows = read_tokens(files.rows, {config.max_position_embeddings, 0, files.most});
  for (const std::int64_t length : read_npy(files.answers).to_int64()) {
    // Whoever takes only the first rows takes only their answers.
    if (files.most > 0 && lengths.size() >= rows.size()) break;
    lengths.push_back(static_cast<int>(std::clamp<std::int64_t>(length, 0, longest)));
  }
}

}  // namespace oscar
