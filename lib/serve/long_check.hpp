// SPDX-License-Identifier: MIT
// Are a server's long answers as good as those of a server of the same model in bfloat16? Five figures, each the mean
// over passages or questions, and its difference to the reference's with a 95 % interval (verify/report/bootstrap.hpp):
//   quoted      share of a passage that is quoted before the first wrong token           (passages)
//   length      tokens of an answer; the difference is relative                          (questions)
//   unanswered  share of questions without an answer: blank, or cut off by the limit     (questions)
//   repetition  share of a text's runs of four words that stood in it before             (both)
//   garbling    share of a text's letters in words that neither the prompts and questions nor the reference's other
//               texts have; characters that no text has count as such letters            (both)
// A figure is worse if its whole interval lies beyond its limit, equal if it lies within, else unclear: ask more.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/long_answers.hpp"
#include "verify/report/bootstrap.hpp"

namespace oscar::serve {

struct LongFigure {
  std::string name;
  double reference = 0, server = 0, difference = 0;
  verify::Interval interval, limit;  // of the difference
  [[nodiscard]] const char* verdict() const;
};

/// Both are answers to `task`; prompts: its prompts as text.
[[nodiscard]] std::vector<LongFigure> compare_long(const LongAnswers& served, const LongAnswers& reference,
                                                   const LongTask& task, const TokenNames& names);

/// Why the server is rejected: whole clauses, one for each figure that is worse.
[[nodiscard]] std::vector<std::string> why_worse(const std::vector<LongFigure>& figures);

/// The member "long" of oscar.serve_check.v1. reference: where its answers are from.
[[nodiscard]] Json to_json(const std::vector<LongFigure>& figures, const LongTask& task, const LongOptions& options,
                           const std::string& reference);

}  // namespace oscar::serve
