// SPDX-License-Identifier: MIT
#include "verify/predictions/model_metrics.hpp"

#include <algorithm>
#include <map>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "verify/attention/method_attention.hpp"
#include "verify/predictions/compare_states.hpp"
#include "verify/predictions/needles.hpp"

namespace oscar::verify {
namespace {

/// Final states of all methods are kept for a batch of texts at a time, within this many bytes (one text a thread at
/// least).
constexpr std::size_t kStateBytes = 512U << 20;

std::int64_t tokens_of(std::span<const TokenSequence> sequences) {
  std::int64_t tokens = 0;
  for (const TokenSequence& sequence : sequences) tokens += static_cast<std::int64_t>(sequence.size());
  return tokens;
}

/// What stands still while methods come and go.
struct Setting {
  ModelRunner& runner;
  Precision precision;
  Backend& backend;
  Status& status;
  std::map<int, ScoreRule> rules;  // of the layers whose attention is replaced
  std::int64_t total_work;         // tokens that pass a layer, of all runs
  std::int64_t work = 0;

  void add_work(std::int64_t tokens) {
    work += tokens;
    status.progress("model metrics, per cent", 100 * work / total_work, 100);
  }
};

/// Attention of a method for the queries from `first` on; zero for those before.
void attend_from(const Setting& setting, const KvMethod& method, int layer, const QkvView& qkv, std::int64_t first,
                 std::span<float> out) {
  const std::int64_t tokens = qkv.q.num_tokens;
  const std::size_t before = out.size() / static_cast<std::size_t>(tokens) * static_cast<std::size_t>(first);
  std::fill_n(out.begin(), before, 0.0F);
  attend(method, layer, qkv, {first, tokens}, setting.rules.at(layer), setting.precision, setting.backend,
         out.subspan(before));
}

/// Runs the model with the attention of a method; null: exact attention. `hooks` say what to do with what it predicts;
/// in the last layer only the queries whose logits are wanted need attention.
void run(Setting& setting, std::span<const TokenSequence> sequences, const KvMethod* method, RunHooks hooks) {
  hooks.layer_done = [&setting, tokens = tokens_of(sequences)](int) { setting.add_work(tokens); };
  if (method != nullptr) {
    const ModelConfig& config = setting.runner.config();
    const int last_layer = config.num_layers - 1;
    hooks.attention = [=, &setting, &config, last = hooks.last_logits](int layer, std::size_t i, const QkvView& qkv,
                                                                       std::span<float> out) {
      const int cache = config.cache_of(layer);  // as the method stores it, whoever reads it
      if (!setting.rules.contains(cache)) return false;
      attend_from(setting, *method, cache, qkv, last && layer == last_layer ? qkv.q.num_tokens - last(i) : 0, out);
      return true;
    };
  }
  Status quiet;  // the runner counts the sequences of each layer
  setting.runner.run(sequences, hooks, quiet);
}

std::unique_ptr<FinalStates> final_states(Setting& setting, std::span<const TokenSequence> texts,
                                          const KvMethod* method) {
  std::unique_ptr<FinalStates> states;
  run(setting, texts, method, {.final_states = [&](std::unique_ptr<FinalStates> all) { states = std::move(all); }});
  return states;
}

/// The figures of a batch of texts, [method][text]. methods: null is exact attention.
std::vector<std::vector<TextFigures>> run_texts(Setting& setting, std::span<const TokenSequence> batch,
                                                std::span<const KvMethod* const> methods) {
  const std::unique_ptr<FinalStates> exact = final_states(setting, batch, nullptr);
  std::vector<std::unique_ptr<FinalStates>> owned;
  std::vector<const FinalStates*> states;
  for (const KvMethod* method : methods) {
    if (method != nullptr) owned.push_back(final_states(setting, batch, method));
    states.push_back(method != nullptr ? owned.back().get() : exact.get());
  }
  return compare_states(setting.runner, batch, *exact, states);
}

/// Needles and then quotations: sequences that end with answers. Of a needle's the last token (the full stop) does not
/// count.
struct Answers {
  std::vector<TokenSequence> sequences;
  std::vector<int> lengths, asked;

  explicit Answers(const ModelData& data) : sequences(data.needles), lengths(data.answer_lengths) {
    sequences.insert(sequences.end(), data.quotes.begin(), data.quotes.end());
    for (const int length : lengths) asked.push_back(length - 1);
    lengths.insert(lengths.end(), data.quote_lengths.begin(), data.quote_lengths.end());
    asked.insert(asked.end(), data.quote_lengths.begin(), data.quote_lengths.end());
  }
};

std::vector<AnswerResult> run_answers(Setting& setting, const Answers& answers, const KvMethod* method) {
  std::vector<AnswerResult> results(answers.sequences.size());
  if (results.empty()) return results;
  RunHooks hooks;
  hooks.last_logits = [&](std::size_t i) { return std::int64_t{answers.lengths[i]} + 1; };
  hooks.logits = [&](std::size_t i, std::span<const float> logits) {
    results[i] = read_answer(answers.sequences[i], answers.lengths[i], answers.asked[i], logits);
  };
  run(setting, answers.sequences, method, std::move(hooks));
  return results;
}

/// How many texts from `begin` on are run together.
std::size_t batch_size(const std::vector<TokenSequence>& texts, std::size_t begin, std::size_t bytes_a_token) {
  std::size_t bytes = 0;
  std::size_t end = begin;
  while (end < texts.size()) {
    bytes += texts[end].size() * bytes_a_token;
    if (end - begin >= static_cast<std::size_t>(num_threads()) && bytes > kStateBytes) break;
    ++end;
  }
  return end - begin;
}

/// Throws DataError unless each sequence has one answer, of `least` tokens or more and shorter than itself.
void check_answers(const std::vector<TokenSequence>& sequences, const std::vector<int>& lengths, int least,
                   const std::string& what, const std::string& options) {
  if (sequences.size() != lengths.size()) {
    throw DataError(plural(sequences.size(), what) + ", but " + plural(lengths.size(), "answer length"), options,
                    "give one length per " + what);
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (lengths[i] >= least && static_cast<std::size_t>(lengths[i]) < sequences[i].size()) continue;
    throw DataError("an answer of " + plural(lengths[i], "token") + " does not fit a " + what + " of " +
                        std::to_string(sequences[i].size()),
                    what + " " + std::to_string(i),
                    "answers have " + plural(least, "token") + " or more and stand at the end of the " + what);
  }
}

}  // namespace

void check_model_data(const ModelData& data) {
  for (std::size_t i = 0; i < data.texts.size(); ++i) {
    if (data.texts[i].size() >= 2) continue;
    throw DataError("a sequence of " + plural(data.texts[i].size(), "token") + " has no next token to predict",
                    "evaluation sequence " + std::to_string(i), "give sequences of two tokens or more");
  }
  check_answers(data.needles, data.answer_lengths, 2, "needle", "--needle, --needle-answers");
  check_answers(data.quotes, data.quote_lengths, 1, "quotation", "--quote, --quote-answers");
}

std::vector<ModelMetrics> measure_model(ModelRunner& runner, const ModelData& data,
                                        const std::vector<KvMethod>& methods, Precision precision, Backend& backend,
                                        Status& status) {
  check_model_data(data);
  if (const std::string reason = runner.config().why_irreplaceable(); !reason.empty()) {
    throw UsageError("metrics of the model do not know " + reason + " yet", "--model",
                     "leave out --model: attention metrics need a dump only");
  }
  std::vector<const KvMethod*> runs;  // each once; all methods that quantise nothing are one run
  std::vector<std::size_t> run_of;
  for (const KvMethod& method : methods) {
    const KvMethod* run = method.kind == MethodKind::kExact ? nullptr : &method;
    run_of.push_back(static_cast<std::size_t>(std::find(runs.begin(), runs.end(), run) - runs.begin()));
    if (run_of.back() == runs.size()) runs.push_back(run);
  }
  const Answers answers(data);
  const auto passes = std::ssize(runs);
  const bool exact_wanted = std::count(runs.begin(), runs.end(), nullptr) > 0;
  const std::int64_t tokens =
      tokens_of(data.texts) * (passes + (exact_wanted ? 0 : 1)) + tokens_of(answers.sequences) * passes;
  Setting setting{runner, precision,        backend,
                  status, rules_of(runner), std::max<std::int64_t>(1, tokens * runner.config().num_layers)};
  setting.add_work(0);
  std::vector<std::vector<TextFigures>> texts(runs.size());
  const std::size_t bytes_a_token =
      static_cast<std::size_t>(runner.config().hidden_size) * sizeof(float) * (runs.size() + 1);
  for (std::size_t begin = 0; begin < data.texts.size();) {
    const std::size_t count = batch_size(data.texts, begin, bytes_a_token);
    const auto figures = run_texts(setting, std::span(data.texts).subspan(begin, count), runs);
    for (std::size_t r = 0; r < runs.size(); ++r) texts[r].insert(texts[r].end(), figures[r].begin(), figures[r].end());
    begin += count;
  }
  std::vector<ModelMetrics> of_runs;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const std::vector<AnswerResult> found = run_answers(setting, answers, runs[r]);
    const auto quotes = found.begin() + std::ssize(data.needles);
    of_runs.push_back(model_metrics(texts[r], {found.begin(), quotes}, {quotes, found.end()}));
  }
  std::vector<ModelMetrics> metrics;
  for (const std::size_t run : run_of) metrics.push_back(of_runs[run]);
  return metrics;
}

}  // namespace oscar::verify
