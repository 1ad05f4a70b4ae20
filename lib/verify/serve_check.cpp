// SPDX-License-Identifier: MIT
#include "verify/serve_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/version.hpp"
#include "verify/method_attention.hpp"
#include "verify/probes.hpp"

namespace oscar {
namespace {

using verify::ServedPosition;

/// A share that no token is left without, so that logarithms stay finite.
constexpr double kLeast = 1e-9;

/// A prompt, and what the server made of it.
struct Dialogue {
  TokenSequence prompt, answer;  // answer: of needles, what should follow
  std::vector<ServedPosition> served;

  [[nodiscard]] TokenSequence tokens() const {
    TokenSequence all = prompt;
    for (const ServedPosition& position : served) all.push_back(position.token);
    return all;
  }
  [[nodiscard]] bool found() const {
    return !answer.empty() && served.size() >= answer.size() &&
           std::ranges::equal(answer, std::span(served).first(answer.size()), {}, {}, &ServedPosition::token);
  }
};

std::vector<Dialogue> make_dialogues(const std::vector<TokenSequence>& texts, Windows windows,
                                     const ServeCheckOptions& options) {
  const auto length = static_cast<std::size_t>(options.prompt_tokens);
  if (options.prompt_tokens <= windows.sink + windows.recent) {
    throw UsageError(
        fmt::format("prompts of {} tokens lie in the windows of {} and {}", length, windows.sink, windows.recent),
        "--prompt-tokens", "make prompts longer, or nothing of them is quantised");
  }
  std::vector<Dialogue> dialogues;
  for (const TokenSequence& text : texts) {
    for (std::size_t at = 0; at + length <= text.size(); at += length) {
      if (dialogues.size() == static_cast<std::size_t>(options.prompts)) break;
      dialogues.push_back(
          {{text.begin() + static_cast<std::ptrdiff_t>(at), text.begin() + static_cast<std::ptrdiff_t>(at + length)},
           {},
           {}});
    }
  }
  if (dialogues.empty()) {
    throw UsageError(fmt::format("no text has {} tokens", length), "--text", "give longer texts");
  }
  const verify::Probes probes = verify::make_probes(texts, texts,
                                                    {.count = options.needles,
                                                     .length = options.prompt_tokens,
                                                     .first = windows.sink,
                                                     .distance = windows.recent + std::int64_t{64}});
  for (std::size_t i = 0; i < probes.sequences.size(); ++i) {
    const auto end = probes.sequences[i].end() - probes.answer_lengths[i];
    dialogues.push_back({{probes.sequences[i].begin(), end}, {end, probes.sequences[i].end()}, {}});
  }
  return dialogues;
}

void ask_all(const verify::AskServer& ask, const verify::TokenNames& names, const std::string& model, int max_tokens,
             std::vector<Dialogue>& dialogues, Status& status) {
  for (std::size_t i = 0; i < dialogues.size(); ++i) {
    status.progress("prompts", static_cast<std::int64_t>(i), static_cast<std::int64_t>(dialogues.size()));
    dialogues[i].served = ask_continuation(ask, model, dialogues[i].prompt, max_tokens, names);
  }
}

/// Log-probabilities of the listed tokens: [dialogue][generated position but the first][listed token], and the choice.
struct Prediction {
  std::vector<double> listed;
  std::int32_t top = 0;
};
using Predictions = std::vector<std::vector<Prediction>>;

Prediction predict(std::span<const float> logits, const ServedPosition& served) {
  const auto highest = std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - *highest);
  Prediction prediction{{}, static_cast<std::int32_t>(highest - logits.begin())};
  for (const auto& [id, ignored] : served.log_probabilities) {
    if (static_cast<std::size_t>(id) >= logits.size()) {
      throw DataError(fmt::format("the server lists token {}, and the model has {}", id, logits.size()), "--model",
                      "give the checkpoint that the server runs");
    }
    prediction.listed.push_back(double{logits[static_cast<std::size_t>(id)]} - *highest - std::log(sum));
  }
  return prediction;
}

/// set: null for exact attention.
Predictions run_model(ModelRunner& runner, const std::vector<Dialogue>& dialogues, const KvMethod* set,
                      Backend& backend) {
  std::vector<TokenSequence> sequences;
  for (const Dialogue& dialogue : dialogues) sequences.push_back(dialogue.tokens());
  Predictions predictions(dialogues.size());
  KvMethod exact;
  const std::map<int, ScoreRule> rules = verify::rules_of(runner);
  RunHooks hooks;
  hooks.logits = [&](std::size_t i, std::span<const float> logits) {
    const std::size_t vocabulary = logits.size() / sequences[i].size(), first = dialogues[i].prompt.size();
    for (std::size_t j = 1; j < dialogues[i].served.size(); ++j) {
      predictions[i].push_back(
          predict(logits.subspan((first + j - 1) * vocabulary, vocabulary), dialogues[i].served[j]));
    }
  };
  if (set != nullptr) {
    std::vector<LayerShape> shapes;
    for (const auto& [id, layer] : set->layers) shapes.push_back({id, layer.head_dim, layer.num_kv_heads});
    exact = make_baseline("bf16", shapes, set->windows, 0);
    hooks.attention = [&](int layer, std::size_t i, const QkvView& qkv, std::span<float> out) {
      if (!rules.contains(layer)) return false;
      const auto first = static_cast<std::int64_t>(dialogues[i].prompt.size()), tokens = qkv.q.num_tokens;
      const std::size_t before = out.size() / static_cast<std::size_t>(tokens) * static_cast<std::size_t>(first);
      verify::attend(exact, layer, qkv, {0, first}, rules.at(layer), Precision::kServing, backend, out.first(before));
      if (first < tokens) {
        verify::attend(*set, layer, qkv, {first, tokens}, rules.at(layer), Precision::kServing, backend,
                       out.subspan(before));
      }
      return true;
    };
  }
  Status quiet;
  runner.run(sequences, hooks, quiet);
  return predictions;
}

/// KL over the listed tokens and the rest as one.
double divergence(std::span<const double> p, std::span<const double> q) {
  double kl = 0, p_rest = 1, q_rest = 1;
  for (std::size_t i = 0; i < p.size(); ++i) {
    kl += std::exp(p[i]) * (p[i] - q[i]);
    p_rest -= std::exp(p[i]), q_rest -= std::exp(q[i]);
  }
  p_rest = std::max(p_rest, kLeast), q_rest = std::max(q_rest, kLeast);
  return kl + p_rest * std::log(p_rest / q_rest);
}

void compare(const std::vector<Dialogue>& dialogues, const Predictions& exact, const Predictions& set,
             ServeCheckReport& report) {
  double both = 0, served_square = 0, set_square = 0;
  for (std::size_t d = 0; d < dialogues.size(); ++d) {
    for (std::size_t j = 0; j < exact[d].size(); ++j) {
      const ServedPosition& position = dialogues[d].served[j + 1];
      std::vector<double> served;
      for (const auto& [id, value] : position.log_probabilities) served.push_back(value);
      const std::vector<double>&p = exact[d][j].listed, &q = set[d][j].listed;
      report.measured_kl += divergence(p, served), report.predicted_kl += divergence(p, q);
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double weight = std::exp(p[i]), a = served[i] - p[i], b = q[i] - p[i];
        both += weight * a * b, served_square += weight * a * a, set_square += weight * b * b;
      }
      report.same_top += position.token == exact[d][j].top ? 1 : 0;
      report.predicted_same_top += set[d][j].top == exact[d][j].top ? 1 : 0;
      ++report.positions;
    }
  }
  const auto count = static_cast<double>(std::max<std::int64_t>(report.positions, 1));
  for (double* sum : {&report.measured_kl, &report.predicted_kl, &report.same_top, &report.predicted_same_top}) {
    *sum /= count;
  }
  report.agreement = both / std::max(std::sqrt(served_square * set_square), 1e-300);
}

void judge(const ServeCheckOptions& options, ServeCheckReport& report) {
  const double ratio = report.measured_kl / std::max(report.predicted_kl, 1e-300);
  const std::string figures = fmt::format("the server is {:.3g} nats from exact attention, the set would be {:.3g}",
                                          report.measured_kl, report.predicted_kl);
  if (ratio < options.min_ratio) report.reasons.push_back(figures + ": its cache is not quantised as the set says");
  if (ratio > options.max_ratio)
    report.reasons.push_back(figures + ": another rotation, other clip ratios or another model");
  if (report.agreement < options.min_agreement) {
    report.reasons.push_back(fmt::format("what changes is not what the set changes: agreement {:.2f}, below {:.2f}",
                                         report.agreement, options.min_agreement));
  }
  report.accepted = report.reasons.empty();
}

}  // namespace

ServeCheckReport check_server(const verify::AskServer& ask, const verify::TokenNames& names, ModelRunner& runner,
                              const std::vector<TokenSequence>& texts, const KvMethod& set,
                              const ServeCheckOptions& options, Backend& backend, Status& status) {
  std::vector<Dialogue> dialogues = make_dialogues(texts, set.windows, options);
  ServeCheckReport report;
  report.served_model = verify::served_model(ask, options.served_model);
  ask_all(ask, names, report.served_model, options.generated_tokens, dialogues, status);
  status.notice("running the model over the same tokens, with exact attention and with the set");
  const Predictions exact = run_model(runner, dialogues, nullptr, backend);
  compare(dialogues, exact, run_model(runner, dialogues, &set, backend), report);
  if (report.positions == 0) {
    throw DataError("the server's tokens have no place in the model's vocabulary, or it generated none",
                    report.served_model, "check that --model is the checkpoint that the server runs");
  }
  for (const Dialogue& dialogue : dialogues) {
    ++(dialogue.answer.empty() ? report.prompts : report.needles);
    report.needles_found += dialogue.found() ? 1 : 0;
  }
  judge(options, report);
  return report;
}

Json to_json(const ServeCheckReport& report, const ServeCheckOptions& options) {
  return {{"schema", "oscar.serve_check.v1"},
          {"oscar_version", kVersion},
          {"served_model", report.served_model},
          {"prompts", report.prompts},
          {"needles", report.needles},
          {"needles_found", report.needles_found},
          {"positions", report.positions},
          {"measured_kl", report.measured_kl},
          {"predicted_kl", report.predicted_kl},
          {"agreement", report.agreement},
          {"same_top", report.same_top},
          {"predicted_same_top", report.predicted_same_top},
          {"limits", {{"ratio", {options.min_ratio, options.max_ratio}}, {"agreement", options.min_agreement}}},
          {"verdict", report.accepted ? "accepted" : "rejected"},
          {"reasons", report.reasons}};
}

}  // namespace oscar
