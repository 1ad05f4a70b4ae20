// SPDX-License-Identifier: MIT
#include "measure/predictions/model_metrics.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "measure/attention/attention_metrics.hpp"

namespace oscar {
namespace {

/// Where the predictions of a sequence are looked at: behind tokens [first, first + count).
struct Positions {
  std::size_t first, count;
};

/// Compares what runs of one model over the same sequences predict, some neighbouring positions at a time: the logits
/// of whole texts would take gigabytes. Returns the figures of each run in `runs` beside those of exact attention,
/// [run][sequence][position]. asked: of each sequence.
std::vector<std::vector<TextFigures>> compare_states(const ModelConfig& config,
                                                     std::span<const TokenSequence> sequences,
                                                     std::span<const Positions> asked, const FinalStates& exact,
                                                     std::span<const FinalStates* const> runs) {
  // Of one run, at a time: by each thread of a host, or by the one call that a GPU has.
  const std::size_t logits = std::size_t{1} << (exact.concurrent_calls() == 0 ? 23 : 26);
  const std::size_t at_once = std::max<std::size_t>(logits / static_cast<std::size_t>(config.vocab_size), 1);
  std::vector<std::vector<TextFigures>> figures(runs.size(), std::vector<TextFigures>(sequences.size()));
  std::vector<std::pair<std::size_t, std::size_t>> blocks;  // sequence, first of the positions that are asked for
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    for (std::vector<TextFigures>& run : figures) run[s].resize(asked[s].count);
    for (std::size_t first = 0; first < asked[s].count; first += at_once) blocks.emplace_back(s, first);
  }
  parallel_for(
      blocks.size(),
      [&](std::size_t b) {
        throw_if_interrupted();
        const auto [s, first] = blocks[b];
        const std::size_t count = std::min(at_once, asked[s].count - first), token = asked[s].first + first;
        std::vector<std::span<PositionFigures>> out;
        for (std::vector<TextFigures>& run : figures) out.push_back(std::span(run[s]).subspan(first, count));
        const auto next = std::span(sequences[s]).subspan(token + 1, count);
        exact.compare(s, static_cast<std::int64_t>(token), next, runs, out);
      },
      exact.concurrent_calls());
  return figures;
}

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
  std::int64_t total_work;         // tokens that pass a layer, of all runs; 0: nothing runs
  std::int64_t work = 0;

  void add_work(std::int64_t tokens) {
    work += tokens;
    status.progress("model metrics, per cent", total_work > 0 ? 100 * work / total_work : 100, 100);
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

/// What is behind the last layer where the model runs with the attention of a method; null: exact attention. In the
/// last layer only queries from the first position on that is asked for need attention.
std::unique_ptr<FinalStates> final_states(Setting& setting, std::span<const TokenSequence> sequences,
                                          std::span<const Positions> asked, const KvMethod* method) {
  std::unique_ptr<FinalStates> states;
  RunHooks hooks{.final_states = [&](std::unique_ptr<FinalStates> all) { states = std::move(all); }};
  hooks.layer_done = [&setting, tokens = tokens_of(sequences)](int) { setting.add_work(tokens); };
  if (method != nullptr) {
    const ModelConfig& config = setting.runner.config();
    const int last_layer = config.num_layers - 1;
    hooks.attention = [=, &setting, &config](int layer, std::size_t i, const QkvView& qkv, std::span<float> out) {
      const int cache = config.cache_of(layer);  // as the method stores it, whoever reads it
      if (!setting.rules.contains(cache)) return false;
      attend_from(setting, *method, cache, qkv, layer == last_layer ? asked[i].first : 0, out);
      return true;
    };
  }
  Status quiet;  // the runner counts the sequences of each layer
  setting.runner.run(sequences, hooks, quiet);
  return states;
}

/// The figures of a batch of texts, [method][text]. methods: null is exact attention. exact: its states; null: it runs.
std::vector<std::vector<TextFigures>> run_texts(Setting& setting, std::span<const TokenSequence> batch,
                                                std::span<const KvMethod* const> methods, const FinalStates* exact) {
  std::vector<Positions> all;
  for (const TokenSequence& text : batch) all.push_back({0, text.size() - 1});
  std::vector<std::unique_ptr<FinalStates>> owned;
  const auto run_one = [&](const KvMethod* method) {
    owned.push_back(final_states(setting, batch, all, method));
    return owned.back().get();
  };
  if (exact == nullptr) exact = run_one(nullptr);
  std::vector<const FinalStates*> states;
  for (const KvMethod* method : methods) states.push_back(method != nullptr ? run_one(method) : exact);
  return compare_states(setting.runner.config(), batch, all, *exact, states);
}

/// Needles and then quotations: sequences that end with answers. Of a needle's the last token (the full stop) does not
/// count.
struct Answers {
  std::vector<TokenSequence> sequences;
  std::vector<int> lengths;
  std::vector<Positions> asked;

  explicit Answers(const ModelData& data) : sequences(data.needles), lengths(data.answer_lengths) {
    sequences.insert(sequences.end(), data.quotes.begin(), data.quotes.end());
    lengths.insert(lengths.end(), data.quote_lengths.begin(), data.quote_lengths.end());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const auto length = static_cast<std::size_t>(lengths[i]);
      asked.push_back({sequences[i].size() - length - 1, i < data.needles.size() ? length - 1 : length});
    }
  }
};

std::vector<AnswerResult> run_answers(Setting& setting, const Answers& answers, const KvMethod* method) {
  std::vector<AnswerResult> results;
  if (answers.sequences.empty()) return results;
  const auto states = final_states(setting, answers.sequences, answers.asked, method);
  const FinalStates* const run = states.get();
  const auto figures = compare_states(setting.runner.config(), answers.sequences, answers.asked, *run, {&run, 1});
  for (std::size_t i = 0; i < answers.sequences.size(); ++i) {
    results.push_back(read_answer(answer_depth(answers.sequences[i], answers.lengths[i]), figures.front()[i]));
  }
  return results;
}

/// The methods whose attention a model runs with, each once: all that quantise nothing are one run, which is null.
struct Runs {
  std::vector<const KvMethod*> methods;
  std::vector<std::size_t> of_method;

  explicit Runs(const std::vector<KvMethod>& all) {
    for (const KvMethod& method : all) {
      const KvMethod* run = method.kind == MethodKind::kExact ? nullptr : &method;
      of_method.push_back(static_cast<std::size_t>(std::find(methods.begin(), methods.end(), run) - methods.begin()));
      if (of_method.back() == methods.size()) methods.push_back(run);
    }
  }
  [[nodiscard]] bool has_exact() const { return std::count(methods.begin(), methods.end(), nullptr) > 0; }
  /// Of the final states of all of them and of an exact run.
  [[nodiscard]] std::size_t bytes_a_token(const ModelConfig& config) const {
    return static_cast<std::size_t>(config.hidden_size) * sizeof(float) * (methods.size() + 1);
  }
};

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

bool runs_texts_together(const ModelRunner& runner, const ModelData& data, const std::vector<KvMethod>& methods) {
  return batch_size(data.texts, 0, Runs(methods).bytes_a_token(runner.config())) == data.texts.size();
}

std::vector<ModelMetrics> measure_model(ModelRunner& runner, const ModelData& data,
                                        const std::vector<KvMethod>& methods, Precision precision, Backend& backend,
                                        Status& status, const FinalStates* exact) {
  check_model_data(data);
  if (const std::string reason = runner.config().why_irreplaceable(); !reason.empty()) {
    throw UsageError("metrics of the model do not know " + reason + " yet", "--model",
                     "leave out --model: attention metrics need a dump only");
  }
  OSCAR_CHECK(exact == nullptr || runs_texts_together(runner, data, methods));
  const Runs runs(methods);
  const Answers answers(data);
  const auto passes = std::ssize(runs.methods);
  const std::int64_t over_texts = passes + (exact == nullptr ? 1 : 0) - (runs.has_exact() ? 1 : 0);
  const std::int64_t tokens = tokens_of(data.texts) * over_texts + tokens_of(answers.sequences) * passes;
  Setting setting{runner, precision, backend, status, rules_of(runner), tokens * runner.config().num_layers};
  setting.add_work(0);
  std::vector<std::vector<TextFigures>> texts(runs.methods.size());
  for (std::size_t begin = 0; begin < data.texts.size();) {
    const std::size_t count = batch_size(data.texts, begin, runs.bytes_a_token(runner.config()));
    const auto figures = run_texts(setting, std::span(data.texts).subspan(begin, count), runs.methods, exact);
    for (std::size_t r = 0; r < texts.size(); ++r)
      texts[r].insert(texts[r].end(), figures[r].begin(), figures[r].end());
    begin += count;
  }
  std::vector<ModelMetrics> of_runs;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const std::vector<AnswerResult> found = run_answers(setting, answers, runs.methods[r]);
    const auto quotes = found.begin() + std::ssize(data.needles);
    of_runs.push_back(model_metrics(texts[r], {found.begin(), quotes}, {quotes, found.end()}));
  }
  std::vector<ModelMetrics> metrics;
  for (const std::size_t run : runs.of_method) metrics.push_back(of_runs[run]);
  return metrics;
}

void check_model_data(const ModelData& data) {
  for (std::size_t i = 0; i < data.texts.size(); ++i) {
    if (data.texts[i].size() >= 2) continue;
    throw DataError("a sequence of " + plural(data.texts[i].size(), "token") + " has no next token to predict",
                    "evaluation sequence " + std::to_string(i), "give sequences of two tokens or more");
  }
  check_answers(data.needles, data.answer_lengths, 2, "needle", "--needle, --needle-answers");
  check_answers(data.quotes, data.quote_lengths, 1, "quotation", "--quote, --quote-answers");
}

AnswerResult read_answer(std::optional<double> depth, std::span<const PositionFigures> answer) {
  AnswerResult result{.depth = depth, .asked = static_cast<int>(answer.size())};
  for (const PositionFigures& token : answer) {
    result.found += token.right ? 1 : 0;
    result.nll += token.nll;
  }
  result.until_wrong = static_cast<int>(std::ranges::find(answer, false, &PositionFigures::right) - answer.begin());
  return result;
}

std::optional<double> answer_depth(const TokenSequence& needle, int answer_length) {
  const auto prompt_end = needle.end() - answer_length;
  const auto answer_end = needle.end() - 1;
  const auto place = std::find_end(needle.begin(), prompt_end, prompt_end, answer_end);
  if (place == prompt_end) return std::nullopt;
  return static_cast<double>(place - needle.begin()) / static_cast<double>(prompt_end - needle.begin());
}

}  // namespace oscar
