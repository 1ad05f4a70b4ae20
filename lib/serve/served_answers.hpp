// SPDX-License-Identifier: MIT
// What a server of language models with OpenAI's completions interface says: continuations of token ids, and the
// logarithms of the probabilities that it lists at every position. How bytes get there is the caller's business.
//   GET  /v1/models       {"data": [{"id": "NAME"}, ...]}
//   POST /v1/completions  {"model", "prompt": [ids], "max_tokens", "temperature": 0, "logprobs": 5, "echo", ...}
// Non-goals: chat templates of our own, streaming.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.hpp"
#include "model/run/runner.hpp"

namespace oscar::serve {

/// Sends `body` (null: GET) to a path like "/v1/models" and returns what came back as JSON. Throws TransportError.
using AskServer = std::function<Json(const std::string& path, const Json* body)>;

/// Ids of tokens as servers write them: "token_id:17", a text, or a text with the marks of SentencePiece.
class TokenNames {
 public:
  /// Throws DataError as Tokenizer does.
  explicit TokenNames(const std::filesystem::path& model);
  /// -1: no token, or more than one.
  [[nodiscard]] std::int32_t id(const std::string& name) const;

 private:
  std::unordered_map<std::string, std::int32_t> ids_;
};

struct ServedPosition {
  std::int32_t token = 0;                                          // what the server chose
  std::vector<std::pair<std::int32_t, double>> log_probabilities;  // of the tokens that it lists, each once
};

/// Stretches of the texts that follow each other, of `length` tokens each, `most` at most.
[[nodiscard]] std::vector<TokenSequence> cut_prompts(const std::vector<TokenSequence>& texts, int length, int most);

/// The name to ask for: `wanted`, or the only one. Throws UsageError that lists the names if `wanted` is none of them,
/// DataError for an answer that is not of this interface.
[[nodiscard]] std::string served_model(const AskServer& ask, const std::string& wanted);

/// The server's greedy continuation; shorter if it ends, or where a token has no id. Throws DataError for an answer
/// that is not of this interface or lists no probabilities.
[[nodiscard]] std::vector<ServedPosition> ask_continuation(const AskServer& ask, const std::string& model,
                                                           const TokenSequence& prompt, int max_tokens,
                                                           const TokenNames& names);

/// What the server gives to the tokens from `first` on of a text (at least 1 of them, first > 0), one position each.
/// Throws DataError as ask_continuation, and for a server that does not echo prompts.
[[nodiscard]] std::vector<ServedPosition> ask_scores(const AskServer& ask, const std::string& model,
                                                     const TokenSequence& tokens, std::size_t first,
                                                     const TokenNames& names);

}  // namespace oscar::serve
