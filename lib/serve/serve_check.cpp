// SPDX-License-Identifier: MIT
#include "serve/serve_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <random>

#include "base/errors.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "measure/attention/attention_metrics.hpp"
#include "measure/peers/baselines.hpp"

namespace oscar::serve {
namespace {

/// A share that no token is left without, so that logarithms stay finite.
constexpr double kLeast = 1e-9;

/// KL over the tokens that both know and the rest as one.
double divergence(std::span<const double> p, std::span<const double> q) {
  double kl = 0, p_rest = 1, q_rest = 1;
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (std::isnan(p[i])) continue;
    kl += std::exp(p[i]) * (p[i] - q[i]);
    p_rest -= std::exp(p[i]), q_rest -= std::exp(q[i]);
  }
  p_rest = std::max(p_rest, kLeast), q_rest = std::max(q_rest, kLeast);
  return kl + p_rest * std::log(p_rest / q_rest);
}

/// The sums of a cosine.
struct Cosine {
  double both = 0, a_square = 0, b_square = 0;

  void add(std::span<const double> exact, std::span<const double> served, std::span<const double> set) {
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double weight = std::exp(exact[i]), a = served[i] - exact[i], b = set[i] - exact[i];
      both += weight * a * b, a_square += weight * a * a, b_square += weight * b * b;
    }
  }
  [[nodiscard]] double value() const { return both / std::max(std::sqrt(a_square * b_square), 1e-300); }
};

}  // namespace

TokenSequence Dialogue::tokens() const {
  TokenSequence all = prompt;
  for (const ServedPosition& position : served) all.push_back(position.token);
  return all;
}

bool Dialogue::found() const {
  return !answer.empty() && served.size() >= answer.size() &&
         std::ranges::equal(answer, std::span(served).first(answer.size()), {}, {}, &ServedPosition::token);
}

ServedDifferences compare(const std::vector<Dialogue>& dialogues, const Predictions& exact, const Predictions* set) {
  ServedDifferences sums;
  Cosine cosine;
  for (std::size_t d = 0; d < dialogues.size(); ++d) {
    for (std::size_t j = 0; j < exact[d].size(); ++j) {
      const ServedPosition& position = dialogues[d].served[j + 1];
      const Prediction& p = exact[d][j];
      std::vector<double> served;
      for (const auto& [id, value] : position.log_probabilities) served.push_back(value);
      sums.measured_kl += divergence(p.listed, served);
      sums.same_top += position.token == p.top ? 1 : 0;
      ++sums.positions;
      if (set == nullptr) continue;
      const Prediction& q = (*set)[d][j];
      sums.predicted_kl += divergence(p.listed, q.listed);
      sums.predicted_same_top += q.top == p.top ? 1 : 0;
      cosine.add(p.listed, served, q.listed);
    }
  }
  const auto count = static_cast<double>(std::max<std::int64_t>(sums.positions, 1));
  for (double* sum : {&sums.measured_kl, &sums.predicted_kl, &sums.same_top, &sums.predicted_same_top}) *sum /= count;
  sums.agreement = cosine.value();
  return sums;
}

}  // namespace oscar::serve

namespace oscar {
namespace {

using serve::Dialogue;
using serve::Prediction;
using serve::Predictions;
using serve::ServedPosition;

/// A random stretch of a random text that is long enough; empty if none is.
TokenSequence random_span(const std::vector<TokenSequence>& texts, std::size_t tokens, std::mt19937_64& random) {
  std::vector<const TokenSequence*> long_enough;
  for (const TokenSequence& text : texts) {
    if (text.size() >= tokens) long_enough.push_back(&text);
  }
  if (long_enough.empty()) return {};
  const TokenSequence& text = *long_enough[random() % long_enough.size()];
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(random() % (text.size() - tokens + 1));
  return {begin, begin + static_cast<std::ptrdiff_t>(tokens)};
}

/// Retrieval tasks made from any text: a span of tokens from elsewhere stands early in a text, outside the windows, and
/// at its end its first tokens stand once more: who can look back finds how it goes on. Fewer than `count` (or none) if
/// the texts are too short.
std::vector<Dialogue> make_needles(const std::vector<TokenSequence>& texts, Windows windows, int prompt_tokens,
                                   int count) {
  constexpr std::int64_t kSpanTokens = 24, kCue = 8, kRoom = 64;
  std::vector<Dialogue> needles;
  std::mt19937_64 random(0);
  for (int i = 0; i < count && !texts.empty(); ++i) {
    const TokenSequence& text = texts[static_cast<std::size_t>(i) % texts.size()];
    const auto length = std::min<std::int64_t>(std::ssize(text), prompt_tokens);
    const std::int64_t last = length - (windows.recent + kRoom) - 2 * kSpanTokens;
    if (last <= windows.sink) continue;
    const TokenSequence span = random_span(texts, kSpanTokens, random);
    if (span.empty()) break;
    const std::int64_t position = windows.sink + (last - windows.sink) * (2 * i + 1) / (2 * std::int64_t{count});
    Dialogue needle{{text.begin(), text.begin() + position}, {span.begin() + kCue, span.end()}, {}};
    TokenSequence& prompt = needle.prompt;
    prompt.insert(prompt.end(), span.begin(), span.end());
    prompt.insert(prompt.end(), text.begin() + position, text.begin() + length - 2 * kSpanTokens);
    prompt.insert(prompt.end(), span.begin(), span.begin() + kCue);
    needles.push_back(std::move(needle));
  }
  return needles;
}

std::vector<Dialogue> make_dialogues(const std::vector<TokenSequence>& texts, Windows windows,
                                     const ServeCheckOptions& options, Status& status) {
  const std::string length = plural(options.prompt_tokens, "token");
  if (options.prompt_tokens <= windows.sink + windows.recent) {
    throw UsageError(fmt::format("prompts of {} lie in the windows of {} and {}", length, windows.sink, windows.recent),
                     "--prompt-tokens", "make prompts longer, or nothing of them is quantised");
  }
  std::vector<Dialogue> dialogues;
  for (TokenSequence& prompt : serve::cut_prompts(texts, options.prompt_tokens, options.prompts)) {
    dialogues.push_back({std::move(prompt), {}, {}});
  }
  if (dialogues.empty()) throw UsageError("no text has " + length, "--text", "give longer texts");
  if (std::ssize(dialogues) < options.prompts) {
    status.notice(fmt::format("the texts have {} of {}, fewer than --prompts {}",
                              plural(std::ssize(dialogues), "prompt"), length, options.prompts));
  }
  std::ranges::move(make_needles(texts, windows, options.prompt_tokens, options.needles),
                    std::back_inserter(dialogues));
  return dialogues;
}

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
  const std::map<int, ScoreRule> rules = rules_of(runner);  // by the layer that has the cache
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
    for (const auto& [id, layer] : set->layers)
      shapes.push_back({id, layer.head_dim, layer.num_kv_heads, layer.value_dim});
    exact = make_baseline("bf16", shapes, set->windows, 0);
    hooks.attention = [&](int running, std::size_t i, const QkvView& qkv, std::span<float> out) {
      const int layer = runner.config().cache_of(running);
      if (!rules.contains(layer)) return false;
      const auto first = static_cast<std::int64_t>(dialogues[i].prompt.size()), tokens = qkv.q.num_tokens;
      const std::size_t before = out.size() / static_cast<std::size_t>(tokens) * static_cast<std::size_t>(first);
      attend(exact, layer, qkv, {0, first}, rules.at(layer), Precision::kServing, backend, out.first(before));
      if (first < tokens) {
        attend(*set, layer, qkv, {first, tokens}, rules.at(layer), Precision::kServing, backend, out.subspan(before));
      }
      return true;
    };
  }
  Status quiet;
  runner.run(sequences, hooks, quiet);
  return predictions;
}

/// What a reference server says of the same tokens; NaN where it does not list them.
Predictions ask_reference(const serve::AskServer& ask, const serve::TokenNames& names,
                          const std::vector<Dialogue>& dialogues) {
  const std::string model = serve::served_model(ask, "");
  Predictions predictions(dialogues.size());
  for (std::size_t i = 0; i < dialogues.size(); ++i) {
    const auto scores = ask_scores(ask, model, dialogues[i].tokens(), dialogues[i].prompt.size() + 1, names);
    for (std::size_t j = 0; j < scores.size(); ++j) {
      const auto& known = scores[j].log_probabilities;
      Prediction prediction{{}, std::ranges::max_element(known, {}, [](const auto& x) { return x.second; })->first};
      for (const auto& [id, ignored] : dialogues[i].served[j + 1].log_probabilities) {
        const auto same = std::ranges::find(known, id, [](const auto& x) { return x.first; });
        prediction.listed.push_back(same == known.end() ? std::nan("") : same->second);
      }
      predictions[i].push_back(std::move(prediction));
    }
  }
  return predictions;
}

void predict_by_model(ModelRunner& runner, const std::vector<Dialogue>& dialogues, const ServedSet& set,
                      Backend& backend, ServeCheckReport& report) {
  const Predictions exact = run_model(runner, dialogues, nullptr, backend);
  const Predictions predicted = run_model(runner, dialogues, &set.method, backend);
  report.differences = compare(dialogues, exact, &predicted);
  report.has_prediction = true;
}

// What a server says of its own rotations. OSCAR's SGLang calibrates itself at its start where it does not find its
// rotation files, and serves that, without a word to anybody who asks it for text. Visible of that are its settings, if
// it was started with SGLANG_EXPOSE_OWN_ENV_VARS=1.

constexpr std::uintmax_t kMostOfRotations = std::uintmax_t{4} << 30U;  // bytes of a file
constexpr char kOwnFolder[] = "oscar-rotations";

/// The environment of the server's processes, as far as the answer tells it.
Json told_environment(const Json& answer) {
  Json told = Json::object();
  const auto take = [&](const Json& state) {
    if (const Json found = member(state, "env_vars"); found.is_object()) told.update(found);
  };
  take(answer);
  if (const Json states = member(answer, "internal_states"); states.is_array()) std::ranges::for_each(states, take);
  return told;
}

bool is_on(const Json& environment, const char* name) {
  const Json found = member(environment, name);
  const std::string value = found.is_string() ? lower_case(found) : "";
  return value == "1" || value == "true" || value == "yes" || value == "y";
}

/// Empty if the file is one of the set's, or is not on this machine.
std::string why_other_file(const fs::path& path, const ServedFiles& files) {
  if (std::ranges::find(path, fs::path(kOwnFolder)) != path.end()) return "which the server made itself at a start";
  std::error_code ignored;
  if (files.empty() || !fs::is_regular_file(path, ignored)) return {};
  const bool fits = fs::file_size(path, ignored) < kMostOfRotations;
  const std::string hash = fits ? sha256_file(path) : "";
  const bool ours = std::ranges::any_of(files, [&](const auto& file) { return file.second == hash; });
  return ours ? "" : "which is no file of this set";
}

/// Asks for the settings (GET /server_info). Why they are not those of the set whose files these are: whole clauses.
/// Nothing where the server does not tell its settings, or names files that are not on this machine.
std::vector<std::string> why_other_settings(const serve::AskServer& ask, const ServedFiles& files) {
  Json environment;
  try {
    environment = told_environment(ask("/server_info", nullptr));
  } catch (const Error&) {  // servers of other makes have no such page
    return {};
  }
  std::vector<std::string> reasons;
  if (is_on(environment, "SGLANG_OSCAR_CALIBRATION_ACTIVE")) {
    reasons.emplace_back("the server calibrated itself at its start, since it did not find its rotation files");
  }
  for (const char* name : {"SGLANG_OSCAR_K_ROTATION_PATH", "SGLANG_OSCAR_V_ROTATION_PATH"}) {
    const Json found = member(environment, name);
    if (!found.is_string()) continue;
    const std::string path = found, why = why_other_file(path, files);
    if (!why.empty())
      reasons.push_back("the server has " + std::string(name) + "=" + printable_line(path) + ", " + why);
  }
  return reasons;
}

void judge_by_model(const ServeCheckOptions& options, ServeCheckReport& report) {
  const serve::ServedDifferences& found = report.differences;
  const double ratio = found.measured_kl / std::max(found.predicted_kl, 1e-300);
  const std::string figures = fmt::format("the server is {:.3g} nats from exact attention, the set would be {:.3g}",
                                          found.measured_kl, found.predicted_kl);
  if (ratio < options.min_ratio) report.reasons.push_back(figures + ": its cache is not quantised as the set says");
  if (ratio > options.max_ratio)
    report.reasons.push_back(figures + ": another rotation, other clip ratios or another model");
  if (found.agreement < options.min_agreement) {
    report.reasons.push_back(fmt::format("what changes is not what the set changes: agreement {:.2f}, below {:.2f}",
                                         found.agreement, options.min_agreement));
  }
}

void judge_by_reference(const ServeCheckOptions& options, ServeCheckReport& report) {
  const std::string figure =
      fmt::format("the server is {:.3g} nats from the reference", report.differences.measured_kl);
  if (report.differences.measured_kl < options.min_kl)
    report.reasons.push_back(figure + ": its cache is not quantised");
  if (report.differences.measured_kl > options.max_kl)
    report.reasons.push_back(figure + ": a broken cache, or another model");
}

}  // namespace

ServeCheckReport check_server(const serve::AskServer& ask, const serve::TokenNames& names,
                              const ServeReference& reference, const std::vector<TokenSequence>& texts,
                              const ServedSet& set, const ServeCheckOptions& options, Backend& backend,
                              Status& status) {
  std::vector<Dialogue> dialogues = make_dialogues(texts, set.method.windows, options, status);
  ServeCheckReport report;
  report.served_model = serve::served_model(ask, options.served_model);
  for (std::size_t i = 0; i < dialogues.size(); ++i) {
    status.progress("prompts", static_cast<std::int64_t>(i), std::ssize(dialogues));
    const int wanted = std::max(options.generated_tokens, static_cast<int>(dialogues[i].answer.size()));
    dialogues[i].served = ask_continuation(ask, report.served_model, dialogues[i].prompt, wanted, names);
  }
  if (reference.runner != nullptr) {
    status.notice("running the model over the same tokens, with exact attention and with the set");
    predict_by_model(*reference.runner, dialogues, set, backend, report);
    judge_by_model(options, report);
  } else {
    report.differences = compare(dialogues, ask_reference(reference.ask, names, dialogues), nullptr);
    judge_by_reference(options, report);
  }
  std::ranges::copy(why_other_settings(ask, set.files), std::back_inserter(report.reasons));
  if (report.differences.positions == 0) {
    throw DataError("the server's tokens have no place in the model's vocabulary, or it generated none",
                    report.served_model, "check that --model is the checkpoint that the server runs");
  }
  for (const Dialogue& dialogue : dialogues) {
    ++(dialogue.answer.empty() ? report.prompts : report.needles);
    report.needles_found += dialogue.found() ? 1 : 0;
  }
  report.accepted = report.reasons.empty();
  return report;
}

Json to_json(const ServeCheckReport& report, const ServeCheckOptions& options) {
  const serve::ServedDifferences& found = report.differences;
  Json document = {{"schema", "oscar.serve_check.v1"},
                   {"oscar_version", kVersion},
                   {"served_model", report.served_model},
                   {"prompts", report.prompts},
                   {"needles", report.needles},
                   {"needles_found", report.needles_found},
                   {"positions", found.positions},
                   {"measured_kl", found.measured_kl},
                   {"same_top", found.same_top},
                   {"verdict", report.accepted ? "accepted" : "rejected"},
                   {"reasons", report.reasons}};
  if (!report.has_prediction) {
    document["limits"] = {{"kl", {options.min_kl, options.max_kl}}};
    return document;
  }
  document["predicted_kl"] = found.predicted_kl;
  document["agreement"] = found.agreement;
  document["predicted_same_top"] = found.predicted_same_top;
  document["limits"] = {{"ratio", {options.min_ratio, options.max_ratio}}, {"agreement", options.min_agreement}};
  return document;
}

}  // namespace oscar
