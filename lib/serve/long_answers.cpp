// SPDX-License-Identifier: MIT
#include "serve/long_answers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "base/version.hpp"

namespace oscar::serve {
namespace {

// Questions whose answers take more than a line: what a chat model is asked when its answers' lengths are compared.

constexpr std::array<const char*, 24> kLongQuestions{
    "Explain to a ten-year-old why the sky is blue and sunsets are red.",
    "A train leaves at 9:40 and travels 210 km at 84 km/h. When does it arrive? Show each step.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Write a Python function that merges overlapping intervals, and explain how it works.",
    "What are the main differences between a virus and a bacterium?",
    "List the steps to change a flat tyre safely, in order.",
    "A shop sells pens at 3 for 2 euros. How much do 27 pens cost, and how many pens does one get for 30 euros?",
    "Summarise the causes of the First World War in two paragraphs.",
    "Erkläre in einigen Sätzen, wie eine Wärmepumpe ein Haus heizt.",
    "Explique en quelques phrases pourquoi les marées changent au cours du mois.",
    "Explica en pocas frases cómo se hace el pan con masa madre.",
    "请用几句话解释为什么植物需要阳光。",
    "Write a polite letter to a landlord who has not repaired the heating for two weeks.",
    "Compare bicycles, buses and cars for a daily way to work of eight kilometres.",
    "How many ways are there to choose a team of 3 from 7 people? Explain how you count.",
    "Write a SQL query that finds the three customers with the highest total of orders, and explain it.",
    "What should one consider before adopting a dog?",
    "Describe how a bill becomes law in a parliamentary system.",
    "Give five tips for learning a new language as an adult, with a reason for each.",
    "Explain what a hash table is, how collisions are handled, and when it is slow.",
    "If all bloops are razzies and some razzies are lazzies, must some bloops be lazzies? Explain.",
    "Plan a three-day visit to a city that you know well, for a family with two children.",
    "Why do aeroplanes fly? Correct a common wrong explanation.",
    "Write a poem of twelve lines about the first snow in a city.",
};

/// [first, first + count) of tokens.
TokenSequence stretch_of(const TokenSequence& tokens, std::size_t first, std::size_t count) {
  const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

/// Where a passage begins: at a quarter of the prompt, or the first place behind whose first tokens stand there only.
std::size_t passage_in(const TokenSequence& prompt) {
  const std::size_t quarter = prompt.size() / 4, last = prompt.size() - kCueTokens - kQuotedTokens;
  for (std::size_t at = quarter; at <= last; ++at) {
    const TokenSequence cue = stretch_of(prompt, at, kCueTokens);
    const auto first = std::ranges::search(prompt, cue);
    if (std::ranges::search(first.begin() + 1, prompt.end(), cue.begin(), cue.end()).empty()) return at;
  }
  return quarter;
}

Json settings_of(const LongOptions& options) {
  return {{"passages", options.passages},           {"questions", options.questions},
          {"prompt_tokens", options.prompt_tokens}, {"long_tokens", options.long_tokens},
          {"answer_tokens", options.answer_tokens}, {"temperature", options.temperature}};
}

std::string hash_of(const LongTask& task, const LongOptions& options) {
  return sha256_hex(Json{settings_of(options), task.prompts, task.questions}.dump());
}

LongPassage ask_passage(const AskServer& ask, const std::string& model, const TokenNames& names,
                        const TokenSequence& prompt, const LongOptions& options, int seed) {
  const std::size_t at = passage_in(prompt);
  const ServedText written = ask_text(ask, model, prompt, options.long_tokens, {options.temperature, seed}, names);
  TokenSequence again = prompt;
  again.insert(again.end(), written.tokens.begin(), written.tokens.end());
  const TokenSequence cue = stretch_of(prompt, at, kCueTokens);
  again.insert(again.end(), cue.begin(), cue.end());
  const TokenSequence passage = stretch_of(prompt, at + kCueTokens, kQuotedTokens);
  const TokenSequence quoted = ask_text(ask, model, again, kQuotedTokens, {}, names).tokens;
  const auto [wrong, ignored] = std::ranges::mismatch(passage, quoted);
  return {written.text, static_cast<double>(wrong - passage.begin()) / kQuotedTokens};
}

}  // namespace

LongTask make_long_task(const std::vector<TokenSequence>& texts, const LongOptions& options) {
  LongTask task;
  const auto length = static_cast<std::size_t>(options.prompt_tokens);
  for (const TokenSequence& text : texts) {
    for (std::size_t at = 0; at + length <= text.size(); at += length) {
      if (task.prompts.size() == static_cast<std::size_t>(options.passages)) break;
      task.prompts.push_back(stretch_of(text, at, length));
    }
  }
  if (task.prompts.size() < kFewestLong) {
    throw UsageError(fmt::format("the texts give {} of {}, fewer than {}", plural(std::ssize(task.prompts), "prompt"),
                                 plural(options.prompt_tokens, "token"), kFewestLong),
                     "--long", "give more text, or take more of it by --max-tokens");
  }
  for (int i = 0; i < options.questions; ++i) {
    task.questions.emplace_back(kLongQuestions[static_cast<std::size_t>(i) % kLongQuestions.size()]);
  }
  return task;
}

LongAnswers ask_long(const AskServer& ask, const std::string& wanted_model, const TokenNames& names,
                     const LongTask& task, const LongOptions& options, Status& status) {
  LongAnswers answers{served_model(ask, wanted_model), hash_of(task, options), {}, {}};
  const std::string& model = answers.served_model;
  for (std::size_t i = 0; i < task.prompts.size(); ++i) {
    status.progress("passages", static_cast<std::int64_t>(i), std::ssize(task.prompts));
    answers.passages.push_back(ask_passage(ask, model, names, task.prompts[i], options, static_cast<int>(i)));
  }
  for (std::size_t i = 0; i < task.questions.size(); ++i) {
    status.progress("questions", static_cast<std::int64_t>(i), std::ssize(task.questions));
    answers.replies.push_back(
        ask_reply(ask, model, task.questions[i], options.answer_tokens, {options.temperature, static_cast<int>(i)}));
  }
  return answers;
}

Json to_json(const LongAnswers& answers, const LongOptions& options, const std::string& url) {
  Json passages = Json::array(), replies = Json::array();
  for (const LongPassage& passage : answers.passages)
    passages.push_back({{"text", passage.text}, {"quoted", passage.quoted}});
  for (const ServedReply& reply : answers.replies)
    replies.push_back({{"text", reply.text}, {"tokens", reply.tokens}, {"answered", reply.answered}});
  return {{"schema", "oscar.serve_reference.v1"}, {"oscar_version", kVersion},    {"url", url},
          {"served_model", answers.served_model}, {"asked", answers.asked},       {"settings", settings_of(options)},
          {"passages", std::move(passages)},      {"replies", std::move(replies)}};
}

LongAnswers kept_answers(const Json& document, const LongTask& task, const LongOptions& options,
                         const std::string& where) {
  validate_json(document, "oscar.serve_reference.v1", where);
  LongAnswers answers{document.at("served_model"), document.at("asked"), {}, {}};
  for (const Json& passage : document.at("passages"))
    answers.passages.push_back({passage.at("text"), passage.at("quoted")});
  for (const Json& reply : document.at("replies"))
    answers.replies.push_back({reply.at("text"), reply.at("tokens"), reply.at("answered")});
  if (answers.asked != hash_of(task, options)) {
    throw UsageError("these answers are to other prompts, or were asked for with other options", where,
                     "give the same texts and model, and the options that were " + document.at("settings").dump());
  }
  if (answers.passages.size() != task.prompts.size() || answers.replies.size() != task.questions.size()) {
    throw DataError("some answers are missing", where, "make the file once more by --save-long");
  }
  return answers;
}

}  // namespace oscar::serve
