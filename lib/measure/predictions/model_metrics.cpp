// SPDX-License-Identifier: MIT
#include "measure/predictions/model_metrics.hpp"

#include <algorithm>
#include <atomic>
#include <map>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"
#include "measure/attention/attention_metrics.hpp"

namespace oscar {
namespace {

/// Logits of one run that a thread holds at a time.
constexpr std::size_t kBlockBytes = 32U << 20;

/// Positions whose logits fill a block.
std::size_t positions_at_once(std::size_t vocab) {
  return std::max<std::size_t>(kBlockBytes / (vocab * sizeof(float)), 1);
}

/// Neighbouring positions of one text.
struct Block {
  std::size_t text, first, count;
};

std::vector<Block> blocks_of(std::span<const TokenSequence> texts, std::size_t vocab) {
  const std::size_t largest = positions_at_once(vocab);
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::size_t positions = texts[i].size() - 1;
    for (std::size_t first = 0; first < positions; first += largest) {
      blocks.push_back({i, first, std::min(largest, positions - first)});
    }
  }
  return blocks;
}

/// Logits of a block, in memory that a GPU's copies reach at full speed.
class BlockLogits {
 public:
  BlockLogits(const ModelRunner& runner, std::size_t vocab)
      : vocab_(vocab), memory_(runner.host_memory(positions_at_once(vocab) * vocab * sizeof(float))) {}

  void read(const FinalStates& states, const Block& block) {
    states.logits(block.text, static_cast<std::int64_t>(block.first), {data(), block.count * vocab_});
  }
  [[nodiscard]] std::span<const float> row(std::size_t i) const { return {data() + i * vocab_, vocab_}; }

 private:
  [[nodiscard]] float* data() const { return reinterpret_cast<float*>(memory_.get()); }

  std::size_t vocab_;
  std::shared_ptr<std::byte> memory_;
};

/// Fills the figures of a block of positions; rows are shared among threads unless this is a thread of many.
void compare_block(const Block& block, const TokenSequence& text, const BlockLogits& exact, const BlockLogits& other,
                   TextFigures& figures) {
  const std::size_t parts = std::min(block.count, static_cast<std::size_t>(num_threads()));
  parallel_for(parts, [&](std::size_t part) {
    TokenDistribution p, q;
    for (std::size_t i = part * block.count / parts; i < (part + 1) * block.count / parts; ++i) {
      p.read(exact.row(i));
      q.read(other.row(i));
      const std::size_t position = block.first + i;
      figures[position] = compare(p, q, static_cast<std::size_t>(text[position + 1]));
    }
  });
}

/// Compares what runs of one model over the same texts predict, block of positions by block: the logits of whole texts
/// would take gigabytes.
/// Returns the figures of each run in `runs` beside those of exact attention, [run][text]. Texts have two tokens or
/// more.
std::vector<std::vector<TextFigures>> compare_states(const ModelRunner& runner, std::span<const TokenSequence> texts,
                                                     const FinalStates& exact,
                                                     std::span<const FinalStates* const> runs) {
  const auto vocab = static_cast<std::size_t>(runner.config().vocab_size);
  const std::vector<Block> blocks = blocks_of(texts, vocab);
  std::vector<std::vector<TextFigures>> figures(runs.size(), std::vector<TextFigures>(texts.size()));
  for (std::vector<TextFigures>& run : figures) {
    for (std::size_t i = 0; i < texts.size(); ++i) run[i].resize(texts[i].size() - 1);
  }
  const int calls = exact.concurrent_calls() > 0 ? exact.concurrent_calls() : num_threads();
  std::atomic<std::size_t> next = 0;
  parallel_for(std::min(blocks.size(), static_cast<std::size_t>(calls)), [&](std::size_t) {
    BlockLogits exact_logits(runner, vocab), logits(runner, vocab);
    for (std::size_t b = next++; b < blocks.size(); b = next++) {
      throw_if_interrupted();
      const Block& block = blocks[b];
      exact_logits.read(exact, block);
      for (std::size_t run = 0; run < runs.size(); ++run) {
        logits.read(*runs[run], block);
        compare_block(block, texts[block.text], exact_logits, logits, figures[run][block.text]);
      }
    }
  });
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

/// The figures of a batch of texts, [method][text]. methods: null is exact attention. exact: its states; null: it runs.
std::vector<std::vector<TextFigures>> run_texts(Setting& setting, std::span<const TokenSequence> batch,
                                                std::span<const KvMethod* const> methods, const FinalStates* exact) {
  std::vector<std::unique_ptr<FinalStates>> owned;
  const auto run_one = [&](const KvMethod* method) {
    owned.push_back(final_states(setting, batch, method));
    return owned.back().get();
  };
  if (exact == nullptr) exact = run_one(nullptr);
  std::vector<const FinalStates*> states;
  for (const KvMethod* method : methods) states.push_back(method != nullptr ? run_one(method) : exact);
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

}  // namespace oscar
