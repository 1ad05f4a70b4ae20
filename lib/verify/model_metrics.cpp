// SPDX-License-Identifier: MIT
#include "verify/model_metrics.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "verify/method_attention.hpp"
#include "verify/model_sums.hpp"
#include "verify/needles.hpp"

namespace oscar::verify {
namespace {

/// Logits of exact attention are kept for a batch of texts at a time, within this many bytes (one text a thread at
/// least).
constexpr std::size_t kReferenceBytes = 512U << 20;

std::int64_t tokens_of(std::span<const TokenSequence> sequences) {
  std::int64_t tokens = 0;
  for (const TokenSequence& sequence : sequences) tokens += static_cast<std::int64_t>(sequence.size());
  return tokens;
}

/// What stands still while methods come and go.
struct Setting {
  ModelRunner& runner;
  const ModelData& data;
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

/// One method, or exact attention.
struct Found {
  std::vector<TextSums> texts;
  std::vector<AnswerResult> needles, quotes;
};

using Logits = std::vector<std::vector<float>>;

/// Attention of a method for the queries from `first` on; zero for those before.
void attend_from(const Setting& setting, const KvMethod& method, int layer, const QkvView& qkv, std::int64_t first,
                 std::span<float> out) {
  const std::int64_t tokens = qkv.q.num_tokens;
  const std::size_t before = out.size() / static_cast<std::size_t>(tokens) * static_cast<std::size_t>(first);
  std::fill_n(out.begin(), before, 0.0F);
  attend(method, layer, qkv, {first, tokens}, setting.rules.at(layer), setting.precision, setting.backend,
         out.subspan(before));
}

/// Runs the model with the attention of a method; null: exact attention. In the last layer only the queries whose
/// logits are wanted need attention.
void run(Setting& setting, std::span<const TokenSequence> sequences, const KvMethod* method, const LastLogits& last,
         LogitsHook logits) {
  RunHooks hooks;
  hooks.logits = std::move(logits);
  hooks.last_logits = last;
  hooks.layer_done = [&setting, tokens = tokens_of(sequences)](int) { setting.add_work(tokens); };
  if (method != nullptr) {
    const ModelConfig& config = setting.runner.config();
    const int last_layer = config.num_layers - 1;
    hooks.attention = [=, &setting, &config, &last](int layer, std::size_t i, const QkvView& qkv,
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

/// A batch of texts; exact attention (method null) fills `reference`, a method is compared with it.
void run_texts(Setting& setting, std::span<const TokenSequence> batch, const KvMethod* method, Logits& reference,
               Found& found) {
  const std::size_t first = found.texts.size();
  found.texts.resize(first + batch.size());
  run(setting, batch, method, {}, [&](std::size_t sequence, std::span<const float> logits) {
    if (method == nullptr) reference[sequence].assign(logits.begin(), logits.end());
    found.texts[first + sequence] = compare_predictions(batch[sequence], logits, reference[sequence]);
  });
}

/// Runs the model over sequences that end with answers, of which all but the last `spare` tokens count.
std::vector<AnswerResult> run_answers(Setting& setting, const std::vector<TokenSequence>& sequences,
                                      const std::vector<int>& lengths, int spare, const KvMethod* method) {
  std::vector<AnswerResult> results(sequences.size());
  if (sequences.empty()) return results;
  const auto last = [&](std::size_t i) { return std::int64_t{lengths[i]} + 1; };
  run(setting, sequences, method, last, [&](std::size_t i, std::span<const float> logits) {
    results[i] = read_answer(sequences[i], lengths[i], lengths[i] - spare, logits);
  });
  return results;
}

void run_probes(Setting& setting, const KvMethod* method, Found& found) {
  const ModelData& data = setting.data;
  found.needles = run_answers(setting, data.needles, data.answer_lengths, 1, method);
  found.quotes = run_answers(setting, data.quotes, data.quote_lengths, 0, method);
}

std::size_t batch_size(const ModelData& data, std::size_t begin, int vocab_size) {
  std::size_t bytes = 0;
  std::size_t end = begin;
  while (end < data.texts.size()) {
    bytes += data.texts[end].size() * static_cast<std::size_t>(vocab_size) * sizeof(float);
    if (end - begin >= static_cast<std::size_t>(num_threads()) && bytes > kReferenceBytes) break;
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
  const auto exact = [&](std::size_t i) { return methods[i].kind == MethodKind::kExact; };
  std::vector<const KvMethod*> quantizing;
  for (std::size_t i = 0; i < methods.size(); ++i) {
    if (!exact(i)) quantizing.push_back(&methods[i]);
  }
  const bool exact_wanted = quantizing.size() < methods.size();
  const auto runs = static_cast<std::int64_t>(quantizing.size());
  const std::int64_t tokens = tokens_of(data.texts) * (runs + 1) +
                              (tokens_of(data.needles) + tokens_of(data.quotes)) * (runs + (exact_wanted ? 1 : 0));
  Setting setting{runner,
                  data,
                  precision,
                  backend,
                  status,
                  rules_of(runner),
                  std::max<std::int64_t>(1, tokens * runner.config().num_layers)};
  setting.add_work(0);
  Found reference;
  std::vector<Found> found(quantizing.size());
  for (std::size_t begin = 0; begin < data.texts.size();) {
    const std::size_t count = batch_size(data, begin, runner.config().vocab_size);
    const auto batch = std::span(data.texts).subspan(begin, count);
    Logits logits(count);
    run_texts(setting, batch, nullptr, logits, reference);
    for (std::size_t i = 0; i < quantizing.size(); ++i) run_texts(setting, batch, quantizing[i], logits, found[i]);
    begin += count;
  }
  if (exact_wanted) run_probes(setting, nullptr, reference);
  for (std::size_t i = 0; i < quantizing.size(); ++i) run_probes(setting, quantizing[i], found[i]);
  std::vector<ModelMetrics> metrics;
  for (std::size_t i = 0, next = 0; i < methods.size(); ++i) {
    const Found& method = exact(i) ? reference : found[next++];
    metrics.push_back(model_metrics(method.texts, method.needles, method.quotes));
  }
  return metrics;
}

}  // namespace oscar::verify
