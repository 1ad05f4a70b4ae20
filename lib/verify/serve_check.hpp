// SPDX-License-Identifier: MIT
// Does a running server use this rotation set? It continues prompts greedily; the model runs over the same tokens with
// exact attention, and once more as a server with this set would: prompts read exactly, generated tokens over the
// packed cache. All three give probabilities to the tokens that the server lists at each generated position but the
// first (which the prompt alone decides), the rest counts as one token:
//   measured   mean KL(exact || server)      predicted  mean KL(exact || set)
//   agreement  sum p a b / sqrt(sum p a^2 sum p b^2), a = log server - log exact, b = log set - log exact, p exact
// A server that does not quantise has `measured` near 0 and no agreement, one with another rotation changes other
// things by other amounts. Non-goals: servers whose prefill reads packed keys of the same prompt (chunked prefill).
#pragma once

#include <string>
#include <vector>

#include "codec/kv_method.hpp"
#include "kernels/backend.hpp"
#include "model/runner.hpp"
#include "verify/served_answers.hpp"

namespace oscar {

struct ServeCheckOptions {
  std::string served_model;  // empty: the server's first
  int prompts = 6, needles = 6;
  int prompt_tokens = 768, generated_tokens = 32;
  /// Accepted: measured / predicted between these, and at least this agreement.
  double min_ratio = 0.3, max_ratio = 3.0, min_agreement = 0.5;
};

struct ServeCheckReport {
  std::string served_model;
  int prompts = 0, needles = 0, needles_found = 0;
  std::int64_t positions = 0;
  double measured_kl = 0, predicted_kl = 0, agreement = 0;
  double same_top = 0, predicted_same_top = 0;  // share of positions where server, and set, choose as exact attention
  bool accepted = false;
  std::vector<std::string> reasons;
};

/// texts: what prompts and needles are cut from. set: windows and layers of the set; its name stands in no figure.
/// Throws UsageError if texts are too short or the set leaves nothing packed, DataError for answers that cannot be
/// compared, and what `ask` throws.
[[nodiscard]] ServeCheckReport check_server(const verify::AskServer& ask, const verify::TokenNames& names,
                                            ModelRunner& runner, const std::vector<TokenSequence>& texts,
                                            const KvMethod& set, const ServeCheckOptions& options, Backend& backend,
                                            Status& status);

/// oscar.serve_check.v1.
[[nodiscard]] Json to_json(const ServeCheckReport& report, const ServeCheckOptions& options);

}  // namespace oscar
