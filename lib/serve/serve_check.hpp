// SPDX-License-Identifier: MIT
// What a server of language models with OpenAI's completions interface says: continuations of token ids, and the
// logarithms of the probabilities that it lists at every position. How bytes get there is the caller's business.
//   GET  /v1/models       {"data": [{"id": "NAME"}, ...]}
//   POST /v1/completions  {"model", "prompt": [ids], "max_tokens", "temperature": 0, "logprobs": 5, "echo", ...}
// Non-goals: chat templates of our own, streaming.
//
// Does a running server use this set? It continues prompts greedily, and the same tokens get probabilities
//   from the model      with exact attention, and once more as a server with this set would: prompts read exactly,
//                       generated tokens over the packed cache. A server that does not quantise has a measured KL near
//                       0 and no agreement with the set, one with another rotation or codec changes other things
//                       by other amounts.
//   or from a reference a server in bfloat16: nothing says then what the set would do, only that the cache is
//                       quantised, and not badly.
// Non-goals: servers whose prefill reads packed keys of the same prompt (chunked prefill).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.hpp"
#include "kernels/backend.hpp"
#include "measure/kv_method.hpp"
#include "model/run/runner.hpp"
#include "model/tokenizer/tokens.hpp"
#include "set/serve_env.hpp"

namespace oscar::serve {

struct AskServer {
  std::string url;  // before the paths
  /// Sends `body` (null: GET) to a path like "/v1/models" and returns what came back as JSON. Throws TransportError.
  std::function<Json(const std::string& path, const Json* body)> send;

  Json operator()(const std::string& path, const Json* body) const { return send(path, body); }
};

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

/// The name to ask for: `wanted`, or the server's first. Throws UsageError that lists the names if `wanted` is none of
/// them, DataError for an answer that is not of this interface.
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

// What a server said beside what exact attention, and a set, give the same tokens (serve_compare.cpp). At
// every generated position but the first (which the prompt alone decides), over the tokens that the server lists, the
// rest as one token:
//   measured   mean KL(exact || server)      predicted  mean KL(exact || set)
//   agreement  sum p a b / sqrt(sum p a^2 sum p b^2), a = log server - log exact, b = log set - log exact, p exact

/// A prompt, and what the server made of it.
struct Dialogue {
  TokenSequence prompt, answer;  // answer: of needles, what should follow
  std::vector<ServedPosition> served;

  /// Prompt and generated tokens.
  [[nodiscard]] TokenSequence tokens() const;
  [[nodiscard]] bool found() const;
};

/// Somebody's logarithms of the probabilities of the tokens that the server lists at a position; NaN: not known.
struct Prediction {
  std::vector<double> listed;
  std::int32_t top = 0;  // the choice
};
/// [dialogue][generated position but the first]
using Predictions = std::vector<std::vector<Prediction>>;

struct ServedDifferences {
  std::int64_t positions = 0;
  double measured_kl = 0, predicted_kl = 0, agreement = 0;
  double same_top = 0, predicted_same_top = 0;  // share of positions where server, and set, choose as exact attention
};

/// set: null where nothing predicts; what it would say is 0 then.
[[nodiscard]] ServedDifferences compare(const std::vector<Dialogue>& dialogues, const Predictions& exact,
                                        const Predictions* set);

}  // namespace oscar::serve

namespace oscar {

/// The set that a server should use.
struct ServedSet {
  KvMethod method;    // windows and layers count; the name stands in no figure
  ServedFiles files;  // that it would have loaded; empty: not known
};

struct ServeCheckOptions {
  std::string served_model;  // empty: the server's first
  int prompts = 6, needles = 6;
  int prompt_tokens = 768, generated_tokens = 32;
  /// Accepted by the model: measured / predicted between these, and at least this agreement.
  double min_ratio = 0.3, max_ratio = 3.0, min_agreement = 0.5;
  /// Accepted by a reference: a measured KL between these.
  double min_kl = 0.001, max_kl = 0.5;
};

struct ServeCheckReport {
  std::string served_model;
  int prompts = 0, needles = 0, needles_found = 0;
  serve::ServedDifferences differences;
  bool has_prediction = false;  // by the model; else by a reference
  bool accepted = false;
  std::vector<std::string> reasons;
};

/// What the served tokens are compared with: a model, or a reference server.
struct ServeReference {
  ModelRunner* runner = nullptr;
  serve::AskServer ask;
};

/// texts: what prompts and needles are cut from. Throws UsageError if texts are too short or the set leaves nothing
/// packed, DataError for answers that cannot be compared, and what `ask` throws.
[[nodiscard]] ServeCheckReport check_server(const serve::AskServer& ask, const serve::TokenNames& names,
                                            const ServeReference& reference, const std::vector<TokenSequence>& texts,
                                            const ServedSet& set, const ServeCheckOptions& options, Backend& backend,
                                            Status& status);

/// oscar.serve_check.v1.
[[nodiscard]] Json to_json(const ServeCheckReport& report, const ServeCheckOptions& options);

}  // namespace oscar
