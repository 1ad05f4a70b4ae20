// SPDX-License-Identifier: MIT
// serve-check --long and --save-long: the options, the talk with servers and kept answers, and the words of the result.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "serve/long_check.hpp"

namespace oscar {

struct LongChoices {
  std::string reference;  // of --long: an address, or a file of --save-long
  std::string save;       // of --save-long
  serve::LongOptions options;
  [[nodiscard]] bool wanted() const { return !reference.empty() || !save.empty(); }
};

void add_long_options(CLI::App& command, LongChoices& choices);

/// Throws UsageError for a number of passages or questions that gives no interval.
void require_enough(const LongChoices& choices);

/// What long answers are compared with.
struct LongReference {
  std::string name;  // an address without credentials, or a file
  serve::LongTask task;
  std::optional<serve::LongAnswers> kept;
  serve::AskServer ask;  // where none are kept
};

/// Returns what answers are compared with, before anything is asked. It reads kept answers if --long names a file; else
/// the caller sets `name` and `ask`. Throws UsageError, DataError.
[[nodiscard]] LongReference long_reference(const LongChoices& choices, const std::vector<TokenSequence>& texts);

/// Asks the server, and the reference if it is one.
[[nodiscard]] std::vector<serve::LongFigure> check_long(const LongChoices& choices, const LongReference& reference,
                                                        const serve::AskServer& ask, const std::string& served_model,
                                                        const serve::TokenNames& names, Status& status);

/// Asks the server and writes its answers to the file of --save-long; returns what it holds. url: as the file names it.
Json save_long(const LongChoices& choices, const serve::AskServer& ask, const std::string& url,
               const std::string& served_model, const serve::TokenNames& names, const std::vector<TokenSequence>& texts,
               Status& status);

/// A table, a line for each figure.
[[nodiscard]] std::string long_summary(const std::vector<serve::LongFigure>& figures, const serve::LongTask& task);

}  // namespace oscar
