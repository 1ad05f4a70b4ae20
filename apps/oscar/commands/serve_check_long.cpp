// SPDX-License-Identifier: MIT
#include "commands/serve_check_long.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "options.hpp"

namespace oscar {
namespace {

serve::LongAnswers ask_for_long(const LongChoices& choices, const serve::AskServer& ask, const std::string& model,
                                const serve::TokenNames& names, const serve::LongTask& task, Status& status) {
  const serve::AskServer with_advice = [&](const std::string& path, const Json* body) {
    try {
      return ask(path, body);
    } catch (const TransportError& error) {
      if (!path.ends_with("/chat/completions")) throw;
      throw TransportError(error.what(), error.where(),
                           "a server of a model without a chat template cannot answer questions: leave them out by "
                           "--questions 0");
    }
  };
  return serve::ask_long(with_advice, model, names, task, choices.options, status);
}

}  // namespace

void add_long_options(CLI::App& command, LongChoices& choices) {
  const auto add = [&](const char* name, auto& value, const char* words) {
    return command.add_option(name, value, words)->capture_default_str()->group("Long answers");
  };
  CLI::Option* const reference = command.add_option(
      "--long", choices.reference,
      "Compare long answers, too, with those of this server in bfloat16 (an address), or with those that --save-long "
      "kept of one (a FILE)");
  CLI::Option* const save =
      command.add_option("--save-long", choices.save, "Keep this server's long answers for --long, and check nothing");
  writes(save->type_name("FILE")->excludes(reference));
  reference->type_name("URL|FILE")->group("Long answers");
  save->group("Long answers");
  add("--passages", choices.options.passages, "Texts to go on from, and to quote a passage of")
      ->check(CLI::Range(serve::kFewestLong, 4096));
  add("--questions", choices.options.questions, "Questions to answer in chat; 0: none")->check(CLI::Range(0, 4096));
  add("--long-tokens", choices.options.long_tokens, "To be written before a passage is quoted")->check(kPositive);
  add("--answer-tokens", choices.options.answer_tokens, "Most for an answer")->check(kPositive);
  add("--temperature", choices.options.temperature, "Of all that is not quoted")->check(kNonNegative);
}

void require_enough(const LongChoices& choices) {
  if (choices.options.questions > 0 && choices.options.questions < serve::kFewestLong) {
    throw UsageError(fmt::format("{} say nothing", plural(choices.options.questions, "question")), "--questions",
                     fmt::format("give 0, or {} and more", serve::kFewestLong));
  }
  // A passage at a quarter of its prompt has to end in it.
  const int least = 2 * (serve::kCueTokens + serve::kQuotedTokens);
  if (choices.options.prompt_tokens < least) {
    throw UsageError("prompts are too short to hold a passage", "--prompt-tokens",
                     fmt::format("give {} or more", least));
  }
}

LongReference long_reference(const LongChoices& choices, const std::vector<TokenSequence>& texts) {
  LongReference reference{choices.reference, serve::make_long_task(texts, choices.options), {}, {}};
  if (std::filesystem::exists(choices.reference)) {
    reference.kept =
        serve::kept_answers(read_json(choices.reference), reference.task, choices.options, choices.reference);
  }
  return reference;
}

std::vector<serve::LongFigure> check_long(const LongChoices& choices, const LongReference& reference,
                                          const serve::AskServer& ask, const std::string& served_model,
                                          const serve::TokenNames& names, Status& status) {
  const serve::LongTask& task = reference.task;
  const serve::LongAnswers exact =
      reference.kept ? *reference.kept : ask_for_long(choices, reference.ask, "", names, task, status);
  return serve::compare_long(ask_for_long(choices, ask, served_model, names, task, status), exact);
}

Json save_long(const LongChoices& choices, const serve::AskServer& ask, const std::string& url,
               const std::string& served_model, const serve::TokenNames& names, const std::vector<TokenSequence>& texts,
               Status& status) {
  const serve::LongTask task = serve::make_long_task(texts, choices.options);
  const serve::LongAnswers answers = ask_for_long(choices, ask, served_model, names, task, status);
  const Json document = serve::to_json(answers, choices.options, url);
  validate_json(document, "oscar.serve_reference.v1", "the answers");
  write_json(choices.save, document);
  return document;
}

std::string long_summary(const std::vector<serve::LongFigure>& figures, const serve::LongTask& task) {
  std::string text = fmt::format("long answers: {} and {}\n", plural(std::ssize(task.prompts), "passage"),
                                 plural(std::ssize(task.questions), "question"));
  text += fmt::format("  {:<11}{:>10}{:>10}{:>12}  {:<18} {}\n", "", "reference", "server", "difference", "95 %", "");
  for (const serve::LongFigure& f : figures) {
    text += fmt::format("  {:<11}{:>10.4g}{:>10.4g}{:>+12.3f}  {:<18} {}\n", f.name, f.reference, f.server,
                        f.difference, fmt::format("{:+.3f} to {:+.3f}", f.interval.low, f.interval.high), f.verdict());
  }
  return text;
}

}  // namespace oscar
