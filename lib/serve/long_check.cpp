// SPDX-License-Identifier: MIT
#include "serve/long_check.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "base/check.hpp"
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
  LongTask task{cut_prompts(texts, options.prompt_tokens, options.passages), {}};
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

namespace {

constexpr double kAny = 1e9;  // in place of a limit

/// One figure's values, text by text.
using Values = std::vector<double>;

double mean_of(const Values& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The difference is relative where `relative`.
LongFigure figure_of(const char* name, const Values& reference, const Values& server, Interval limit,
                     bool relative = false) {
  Values differences, scale;
  for (std::size_t i = 0; i < server.size(); ++i) {
    differences.push_back(server[i] - reference[i]);
    scale.push_back(relative ? std::max(reference[i], 1.0) : 1.0);
  }
  const auto interval = bootstrap(differences, scale);
  OSCAR_CHECK(interval.has_value());  // there are kFewestLong or more
  return {name, mean_of(reference), mean_of(server), mean_of(differences) / mean_of(scale), *interval, limit};
}

template <class Item, class F>
Values values_of(const std::vector<Item>& items, const F& value) {
  Values values;
  for (const Item& item : items) values.push_back(static_cast<double>(value(item)));
  return values;
}

/// The share of a text's bytes that zlib leaves; 1 of an empty one.
double compressed_share(std::string_view text) {
  if (text.empty()) return 1;
  uLongf size = ::compressBound(text.size());
  std::vector<Bytef> packed(size);
  OSCAR_CHECK(::compress(packed.data(), &size, reinterpret_cast<const Bytef*>(text.data()), text.size()) == Z_OK);
  return static_cast<double>(size) / static_cast<double>(text.size());
}

}  // namespace

const char* LongFigure::verdict() const {
  if (interval.high < limit.low || interval.low > limit.high) return "worse";
  return interval.low >= limit.low && interval.high <= limit.high ? "equal" : "unclear";
}

std::vector<LongFigure> compare_long(const LongAnswers& served, const LongAnswers& reference) {
  const auto of_passages = [](const LongAnswers& a) {
    return values_of(a.passages, std::mem_fn(&LongPassage::quoted));
  };
  const auto lengths = [](const LongAnswers& a) { return values_of(a.replies, std::mem_fn(&ServedReply::tokens)); };
  const auto unanswered = [](const LongAnswers& a) {
    return values_of(a.replies, [](const ServedReply& reply) { return reply.answered ? 0 : 1; });
  };
  std::vector<LongFigure> figures{figure_of("quoted", of_passages(reference), of_passages(served), {-0.05, kAny})};
  if (!reference.replies.empty()) {
    figures.push_back(figure_of("length", lengths(reference), lengths(served), {-0.2, 0.2}, true));
    figures.push_back(figure_of("unanswered", unanswered(reference), unanswered(served), {-kAny, 0.05}));
  }
  Values theirs, known;
  const auto take = [&](std::string_view server, std::string_view exact) {
    const std::size_t size = std::min(server.size(), exact.size());
    theirs.push_back(compressed_share(server.substr(0, size)));
    known.push_back(compressed_share(exact.substr(0, size)));
  };
  for (std::size_t i = 0; i < served.passages.size(); ++i) take(served.passages[i].text, reference.passages[i].text);
  for (std::size_t i = 0; i < served.replies.size(); ++i) take(served.replies[i].text, reference.replies[i].text);
  figures.push_back(figure_of("compression", known, theirs, {-0.1, 0.08}));
  return figures;
}

std::vector<std::string> why_worse(const std::vector<LongFigure>& figures) {
  std::vector<std::string> reasons;
  for (const LongFigure& f : figures) {
    if (f.verdict() != std::string("worse")) continue;
    const double limit = f.interval.high < f.limit.low ? f.limit.low : f.limit.high;
    reasons.push_back(
        fmt::format("long answers, {}: {:.3g}, of the reference {:.3g}; the difference of {:+.3f} ({:+.3f} to {:+.3f}) "
                    "is beyond {:+.2f}",
                    f.name, f.server, f.reference, f.difference, f.interval.low, f.interval.high, limit));
  }
  return reasons;
}

Json to_json(const std::vector<LongFigure>& figures, const LongTask& task, const LongOptions& options,
             const std::string& reference) {
  const auto bound = [](double limit) { return limit <= -kAny || limit >= kAny ? Json() : Json(limit); };
  Json list = Json::array();
  for (const LongFigure& f : figures) {
    list.push_back({{"name", f.name},
                    {"reference", f.reference},
                    {"server", f.server},
                    {"difference", f.difference},
                    {"interval", {f.interval.low, f.interval.high}},
                    {"limit", {bound(f.limit.low), bound(f.limit.high)}},
                    {"verdict", f.verdict()}});
  }
  return {{"reference", reference},
          {"passages", task.prompts.size()},
          {"questions", task.questions.size()},
          {"long_tokens", options.long_tokens},
          {"answer_tokens", options.answer_tokens},
          {"temperature", options.temperature},
          {"figures", std::move(list)}};
}

}  // namespace oscar::serve
