// SPDX-License-Identifier: MIT
// Are a server's long answers as good as those of a server of the same model in bfloat16? Needles do not tell quantised
// caches apart; what follows is what users of them complain of. A server is given
//   passages   a prompt cut from the texts; it writes `long_tokens` more; then the first kCueTokens of a passage that
//              stands at a quarter of the prompt, or behind it where they are found once, are put behind that, and the
//              server goes on, greedily
//   questions  of a built-in list, of writing, reasoning, code and five languages, answered in chat
// Four figures, each the mean over passages or questions, and its difference to the reference's with a 95 % interval
// (verify/report/quantiles.hpp):
//   quoted       share of a passage that is quoted before the first wrong token          (passages)
//   length       tokens of an answer; the difference is relative                         (questions)
//   unanswered   share of questions without an answer: blank, or cut off by the limit    (questions)
//   compression  share of a text's bytes that zlib leaves, of as much of both texts as the shorter has: a text that
//                repeats itself has less, one that is garbled more                        (both)
// A figure is worse if its whole interval lies beyond its limit, equal if it lies within, else unclear: ask more.
// Answers are kept in files (oscar.serve_reference.v1), so that two servers need not run at once.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/status.hpp"
#include "measure/quantiles.hpp"
#include "serve/served_answers.hpp"

namespace oscar::serve {

/// Tokens of a passage: what the server is given of it, and what it has to quote.
inline constexpr int kCueTokens = 12, kQuotedTokens = 48;
/// Fewer passages, or questions, give no interval to speak of.
inline constexpr int kFewestLong = 8;

struct LongOptions {
  int passages = 16, questions = 24;
  int prompt_tokens = 768, long_tokens = 1024, answer_tokens = 512;
  double temperature = 0.6;  // of everything but quotations
};

struct LongPassage {
  std::string text;   // what was written between prompt and passage
  double quoted = 0;  // share of the passage before its first wrong token
};

struct LongAnswers {
  std::string served_model;
  std::string asked;  // SHA-256 of all prompts, questions and options
  std::vector<LongPassage> passages;
  std::vector<ServedReply> replies;
};

/// The prompts of passages, and the questions.
struct LongTask {
  std::vector<TokenSequence> prompts;
  std::vector<std::string> questions;
};

/// Throws UsageError if the texts are too short for kFewestLong prompts.
[[nodiscard]] LongTask make_long_task(const std::vector<TokenSequence>& texts, const LongOptions& options);

/// Asks one thing after another. Throws DataError for answers that are not of this interface, and what `ask` throws.
[[nodiscard]] LongAnswers ask_long(const AskServer& ask, const std::string& wanted_model, const TokenNames& names,
                                   const LongTask& task, const LongOptions& options, Status& status);

/// oscar.serve_reference.v1. url: where the answers are from.
[[nodiscard]] Json to_json(const LongAnswers& answers, const LongOptions& options, const std::string& url);
/// Throws DataError for a document that is none, UsageError if the answers are to another task or other options.
[[nodiscard]] LongAnswers kept_answers(const Json& document, const LongTask& task, const LongOptions& options,
                                       const std::string& where);

struct LongFigure {
  std::string name;
  double reference = 0, server = 0, difference = 0;
  Interval interval, limit;  // of the difference
  [[nodiscard]] const char* verdict() const;
};

/// Both are answers to one task.
[[nodiscard]] std::vector<LongFigure> compare_long(const LongAnswers& served, const LongAnswers& reference);

/// Why the server is rejected: whole clauses, one for each figure that is worse.
[[nodiscard]] std::vector<std::string> why_worse(const std::vector<LongFigure>& figures);

/// The member "long" of oscar.serve_check.v1. reference: where its answers are from.
[[nodiscard]] Json to_json(const std::vector<LongFigure>& figures, const LongTask& task, const LongOptions& options,
                           const std::string& reference);

}  // namespace oscar::serve
