// SPDX-License-Identifier: MIT
#include "model_judge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "fit/layer_data.hpp"
#include "verify/methods.hpp"
#include "verify/predictions/model_metrics.hpp"
#include "verify/predictions/probes.hpp"

namespace oscar {
namespace {

/// Tokens of held-out text that candidates are judged on. Every candidate reads the first part. Those whose KL is at
/// most kOpen times the lowest may still be the best; if there are several, they also read the rest.
constexpr std::int64_t kFirstTokens = 2048, kAllTokens = 8192;
constexpr double kOpen = 1.5;
/// Probes decide among candidates of about the same KL (choose() in lib/fit): only those within this factor of the
/// lowest are asked for them, if there are several.
constexpr double kProbed = 1.2;
constexpr std::int64_t kProbeTokens = 768;

/// What candidates are judged on, in the order of the questions.
struct Questions {
  verify::ModelData first, rest, probes;  // two parts of the texts; needles
};

/// Cuts texts where a part is full: a candidate reads each from its beginning.
void add_texts(std::span<const TokenSequence> held_out, Questions& questions) {
  std::int64_t tokens = 0;
  for (const TokenSequence& text : held_out) {
    if (tokens >= kAllTokens) return;
    const bool first = tokens < kFirstTokens;
    const std::int64_t room = (first ? kFirstTokens : kAllTokens) - tokens;
    const std::int64_t count = std::min(room, std::ssize(text));
    if (count < 2) continue;
    (first ? questions.first : questions.rest).texts.emplace_back(text.begin(), text.begin() + count);
    tokens += count;
  }
}

Questions make_questions(const std::vector<TokenSequence>& sequences, const FitOptions& options) {
  const HeldOutSplit split(std::ssize(sequences));
  std::vector<TokenSequence> held_out, others;
  for (std::size_t i = 0; i < sequences.size(); ++i) (split.held_out(i) ? held_out : others).push_back(sequences[i]);
  Questions questions;
  add_texts(held_out, questions);
  const std::int64_t distance = options.windows.recent + std::int64_t{64};
  verify::Probes probes = verify::make_probes(held_out, others,
                                              {.length = std::max(kProbeTokens, 2 * (options.windows.sink + distance)),
                                               .first = options.windows.sink,
                                               .distance = distance,
                                               .seed = options.clip_fit.seed});
  questions.probes.needles = std::move(probes.sequences);
  questions.probes.answer_lengths = std::move(probes.answer_lengths);
  return questions;
}

/// Asks a model about caches, in the order of their methods.
class Judge {
 public:
  Judge(ModelRunner& runner, const Questions& questions, Backend& backend, std::span<const KvMethod> methods)
      : runner_(runner), questions_(questions), backend_(backend), methods_(methods), scores_(methods.size()) {}

  std::vector<ModelScore> scores() {
    read_texts();
    ask_probes();
    return scores_;
  }
  [[nodiscard]] std::vector<double> klds() {
    read_texts();
    std::vector<double> found;
    for (const ModelScore& score : scores_) found.push_back(score.kld);
    return found;
  }

 private:
  [[nodiscard]] std::vector<ModelMetrics> measure(const verify::ModelData& data,
                                                  std::span<const std::size_t> asked) const {
    Status quiet;
    std::vector<KvMethod> caches;
    for (const std::size_t i : asked) caches.push_back(methods_[i]);
    return verify::measure_model(runner_, data, caches, Precision::kServing, backend_, quiet);
  }

  /// Those whose KL is at most `factor` times the lowest.
  [[nodiscard]] std::vector<std::size_t> near(double factor) const {
    std::vector<std::size_t> found;
    double lowest = std::numeric_limits<double>::infinity();
    for (const ModelScore& score : scores_) lowest = std::min(lowest, score.kld);
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      if (scores_[i].kld <= lowest * factor) found.push_back(i);
    }
    return found;
  }

  void read_texts() {
    std::vector<std::size_t> all(methods_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    const std::vector<ModelMetrics> first = measure(questions_.first, all);
    for (const std::size_t i : all) scores_[i].kld = first[i].kld_mean;
    const std::vector<std::size_t> open = near(kOpen);
    if (questions_.rest.texts.empty() || open.size() < 2) return;
    const std::vector<ModelMetrics> rest = measure(questions_.rest, open);
    // What the whole text changes for those who read it, it would have changed for the others as well.
    double whole = 0, part = 0;
    for (std::size_t i = 0; i < open.size(); ++i) {
      const ModelMetrics &a = first[open[i]], &b = rest[i];
      const auto m = static_cast<double>(a.positions), n = static_cast<double>(b.positions);
      scores_[open[i]].kld = (m * a.kld_mean + n * b.kld_mean) / (m + n);
      whole += scores_[open[i]].kld, part += a.kld_mean;
    }
    for (const std::size_t i : all) {
      if (std::ranges::find(open, i) == open.end() && part > 0) scores_[i].kld *= whole / part;
    }
  }

  void ask_probes() {
    for (ModelScore& score : scores_) score.probe = score.probe_error = std::numeric_limits<double>::quiet_NaN();
    if (questions_.probes.needles.empty()) {
      for (ModelScore& score : scores_) score.probe = 0, score.probe_error = std::sqrt(0.125);
      return;
    }
    double asked = 0;
    for (const int length : questions_.probes.answer_lengths) asked += length - 1;
    const std::vector<std::size_t> probed = near(kProbed);
    if (probed.size() < 2) return;
    const std::vector<ModelMetrics> found = measure(questions_.probes, probed);
    for (std::size_t i = 0; i < probed.size(); ++i) {
      // As if tokens were independent, and with one more found and one more missed, or a perfect score had no error.
      const double share = (found[i].answer_tokens * asked + 1) / (asked + 2);
      scores_[probed[i]].probe = found[i].answer_tokens;
      scores_[probed[i]].probe_error = std::sqrt(share * (1 - share) / (asked + 2));
    }
  }

  ModelRunner& runner_;
  const Questions& questions_;
  Backend& backend_;
  std::span<const KvMethod> methods_;
  std::vector<ModelScore> scores_;
};

}  // namespace

std::vector<double> judge_by_kl(ModelRunner& runner, const std::vector<TokenSequence>& sequences,
                                const FitOptions& options, Backend& backend, std::span<const KvMethod> methods) {
  const Questions questions = make_questions(sequences, options);
  return Judge(runner, questions, backend, methods).klds();
}

ModelJudge make_model_judge(ModelRunner& runner, const std::vector<TokenSequence>& sequences, const FitOptions& options,
                            Backend& backend) {
  return [&runner, &backend, questions = make_questions(sequences, options),
          windows = options.windows](std::span<const RotationSet> sets) {
    std::vector<KvMethod> methods;
    for (const RotationSet& set : sets) methods.push_back(verify::method_of_set(set, windows));
    return Judge(runner, questions, backend, methods).scores();
  };
}

}  // namespace oscar
