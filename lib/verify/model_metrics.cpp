// SPDX-License-Identifier: MIT
#include "verify/model_metrics.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"

namespace oscar::verify {
namespace {

/// Logits of exact attention are kept for a batch of texts at a time, within this many bytes (one text at least).
constexpr std::size_t kReferenceBytes = 512U << 20;

/// What one text adds; one per sequence, so that threads do not meet.
struct TextSums {
  double nll = 0;
  std::int64_t same_top = 0;
  std::vector<double> kld;  // per position
};

struct MethodSums {
  double nll = 0;
  std::int64_t same_top = 0, hits = 0, found_tokens = 0, asked_tokens = 0;
  std::vector<double> kld;
};

double log_sum_exp(std::span<const float> row) {
  const double highest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) sum += std::exp(x - highest);
  return highest + std::log(sum);
}

std::int64_t top(std::span<const float> row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

double divergence(std::span<const float> exact, double exact_sum, std::span<const float> other, double other_sum) {
  double kl = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double log_p = exact[i] - exact_sum;
    kl += std::exp(log_p) * (log_p - (other[i] - other_sum));
  }
  return kl;
}

/// Compares every position that has a next token.
TextSums compare_text(const TokenSequence& tokens, std::span<const float> logits, std::span<const float> reference) {
  const std::size_t vocab = logits.size() / tokens.size();
  TextSums sums;
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
    const auto row = logits.subspan(t * vocab, vocab);
    const auto exact = reference.subspan(t * vocab, vocab);
    const double row_sum = log_sum_exp(row);
    sums.nll += row_sum - row[static_cast<std::size_t>(tokens[t + 1])];
    sums.same_top += top(row) == top(exact) ? 1 : 0;
    sums.kld.push_back(std::max(0.0, divergence(exact, log_sum_exp(exact), row, row_sum)));
  }
  return sums;
}

/// Tokens of the answer that are the argmax, the last one left out.
int found_tokens(const TokenSequence& tokens, int answer_length, std::span<const float> logits) {
  int found = 0;
  const std::size_t vocab = logits.size() / tokens.size();
  const std::size_t first = tokens.size() - static_cast<std::size_t>(answer_length);
  for (std::size_t t = first; t + 1 < tokens.size(); ++t) {
    found += top(logits.subspan((t - 1) * vocab, vocab)) == tokens[t] ? 1 : 0;
  }
  return found;
}

/// The attention hook of a method; empty for exact attention.
RunHooks hooks_for(const KvMethod* method, Precision precision, Backend& backend) {
  RunHooks hooks;
  if (method == nullptr) return hooks;
  hooks.attention = [method, precision, &backend](int layer, std::size_t, const QkvView& qkv, std::span<float> out) {
    const HeldSequence held = hold(*method, layer, qkv, {}, precision, backend);
    held.rows->attend(method->layer(layer).codecs(), method->windows, out);
    return true;
  };
  return hooks;
}

using Logits = std::vector<std::vector<float>>;

/// Runs a batch of texts; exact attention (method null) fills `reference`, a method is compared with it.
void run_texts(ModelRunner& runner, std::span<const TokenSequence> batch, RunHooks hooks, Logits* fill,
               const Logits& reference, MethodSums& sums, Status& status) {
  std::vector<TextSums> found(batch.size());
  hooks.logits = [&](std::size_t sequence, std::span<const float> logits) {
    if (fill != nullptr) (*fill)[sequence].assign(logits.begin(), logits.end());
    found[sequence] = compare_text(batch[sequence], logits, reference[sequence]);
  };
  runner.run(batch, hooks, status);
  for (const TextSums& text : found) {
    sums.nll += text.nll;
    sums.same_top += text.same_top;
    sums.kld.insert(sums.kld.end(), text.kld.begin(), text.kld.end());
  }
}

void run_needles(ModelRunner& runner, const ModelData& data, RunHooks hooks, MethodSums& sums, Status& status) {
  if (data.needles.empty()) return;
  std::vector<int> found(data.needles.size());
  hooks.logits = [&](std::size_t sequence, std::span<const float> logits) {
    found[sequence] = found_tokens(data.needles[sequence], data.answer_lengths[sequence], logits);
  };
  runner.run(data.needles, hooks, status);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const int asked = data.answer_lengths[i] - 1;
    sums.hits += found[i] == asked ? 1 : 0;
    sums.found_tokens += found[i];
    sums.asked_tokens += asked;
  }
}

ModelMetrics metrics_of(MethodSums sums, const MethodSums& exact, const ModelData& data) {
  ModelMetrics m;
  m.positions = static_cast<std::int64_t>(sums.kld.size());
  const auto positions = static_cast<double>(std::max<std::int64_t>(m.positions, 1));
  m.ppl = std::exp(sums.nll / positions);
  m.ppl_ratio = std::exp((sums.nll - exact.nll) / positions);
  for (const double kl : sums.kld) m.kld_mean += kl / positions;
  if (!sums.kld.empty()) {
    const auto p99 = sums.kld.begin() + static_cast<std::ptrdiff_t>(std::ceil(0.99 * positions)) - 1;
    std::nth_element(sums.kld.begin(), p99, sums.kld.end());
    m.kld_p99 = *p99;
  }
  m.same_top = static_cast<double>(sums.same_top) / positions;
  m.needle_hits = sums.hits;
  m.needles = static_cast<std::int64_t>(data.needles.size());
  if (m.needles > 0) m.answer_tokens = static_cast<double>(sums.found_tokens) / static_cast<double>(sums.asked_tokens);
  if (m.needles > 0) m.retrieval = static_cast<double>(sums.hits) / static_cast<double>(m.needles);
  return m;
}

std::size_t batch_size(const ModelData& data, std::size_t begin, int vocab_size) {
  std::size_t bytes = 0;
  std::size_t end = begin;
  while (end < data.texts.size()) {
    bytes += data.texts[end].size() * static_cast<std::size_t>(vocab_size) * sizeof(float);
    if (end > begin && bytes > kReferenceBytes) break;
    ++end;
  }
  return end - begin;
}

}  // namespace

void check_model_data(const ModelData& data) {
  for (std::size_t i = 0; i < data.texts.size(); ++i) {
    if (data.texts[i].size() >= 2) continue;
    throw DataError("a sequence of " + std::to_string(data.texts[i].size()) + " tokens has no next token to predict",
                    "evaluation sequence " + std::to_string(i), "give sequences of two tokens or more");
  }
  if (data.needles.size() != data.answer_lengths.size()) {
    throw DataError(std::to_string(data.needles.size()) + " needles, but " +
                        std::to_string(data.answer_lengths.size()) + " answer lengths",
                    "--needle, --needle-answers", "give one length per needle");
  }
  for (std::size_t i = 0; i < data.needles.size(); ++i) {
    const int length = data.answer_lengths[i];
    if (length >= 2 && static_cast<std::size_t>(length) < data.needles[i].size()) continue;
    throw DataError("an answer of " + std::to_string(length) + " tokens does not fit a needle of " +
                        std::to_string(data.needles[i].size()),
                    "needle " + std::to_string(i),
                    "answers have two tokens or more and stand at the end of the needle");
  }
}

std::vector<ModelMetrics> measure_model(ModelRunner& runner, const ModelData& data,
                                        const std::vector<KvMethod>& methods, Precision precision, Backend& backend,
                                        Status& status) {
  check_model_data(data);
  std::vector<MethodSums> sums(methods.size());
  MethodSums exact;
  const auto quantizes = [&](std::size_t i) { return methods[i].kind != MethodKind::kExact; };
  for (std::size_t begin = 0; begin < data.texts.size();) {
    const std::size_t count = batch_size(data, begin, runner.config().vocab_size);
    const auto batch = std::span(data.texts).subspan(begin, count);
    Logits reference(count);
    run_texts(runner, batch, {}, &reference, reference, exact, status);
    for (std::size_t i = 0; i < methods.size(); ++i) {
      if (!quantizes(i)) continue;
      status.notice("model metrics: " + methods[i].name);
      run_texts(runner, batch, hooks_for(&methods[i], precision, backend), nullptr, reference, sums[i], status);
    }
    begin += count;
  }
  const bool exact_wanted = std::any_of(methods.begin(), methods.end(),
                                        [](const KvMethod& method) { return method.kind == MethodKind::kExact; });
  if (exact_wanted) run_needles(runner, data, {}, exact, status);
  std::vector<ModelMetrics> metrics;
  for (std::size_t i = 0; i < methods.size(); ++i) {
    if (quantizes(i)) run_needles(runner, data, hooks_for(&methods[i], precision, backend), sums[i], status);
    metrics.push_back(metrics_of(quantizes(i) ? sums[i] : exact, exact, data));
  }
  return metrics;
}

}  // namespace oscar::verify
