// SPDX-License-Identifier: MIT
// Quantiles of figures, and how far a figure might have come out otherwise with other sequences of the same kind.
// What a way to store keys and values does to attention and to a model's predictions, as numbers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace oscar {

/// The value below which `fraction` of the sorted values lie, linearly between neighbours; 0 of none.
[[nodiscard]] double quantile(std::span<const double> sorted, double fraction);

/// Counts of positive numbers in logarithmic bins of 1 %: quantiles to half a per cent, mergeable, of constant size
/// however many queries a dump has.
class LogHistogram {
 public:
  void add(std::span<const double> values);
  void add(const LogHistogram& other);
  /// The smallest bin centre that at least `fraction` of the values do not exceed; 0 without values. Values below 1e-12
  /// are 0.
  [[nodiscard]] double quantile(double fraction) const;

 private:
  std::vector<std::int64_t> counts_;  // bin 0: below 1e-12
  std::int64_t total_ = 0;
};

/// Holds 95 % of the resampled figures.
struct Interval {
  double low = 0, high = 0;
};

/// Percentile bootstrap (Efron): sequences are drawn with replacement, as many as there are; tokens of one sequence
/// depend on each other and stay together. The draws are the same for every figure and method of as many sequences, and
/// in every run. Returns the interval of sum(numerators) / sum(denominators); one of each a sequence, of equal number.
/// None for fewer than two sequences, or if some draw's denominators add up to nothing.
[[nodiscard]] std::optional<Interval> bootstrap(std::span<const double> numerators,
                                                std::span<const double> denominators);

/// Intervals by the name of their figure.
using Intervals = std::map<std::string, Interval>;

/// Errors of attention over a quantised cache against exact attention; definitions in kernels/README.md.
struct AttentionMetrics {
  std::optional<double> k_sqnr_db, v_sqnr_db;  // of tokens outside the windows; none if there are none, or no error
  double logit_nmse = 0, softmax_kl = 0, softmax_kl_p99 = 0;
  double output_rel_error = 0, output_rel_error_k_only = 0, output_rel_error_v_only = 0;
  double output_cosine = 1, output_cosine_k_only = 1, output_cosine_v_only = 1;
  std::optional<double> needle_mass_kept;  // none: no key outside the windows was a needle
};

/// Positions [begin, end) of all texts.
struct PositionBin {
  std::int64_t begin = 0, end = 0;
  double kld_mean = 0;
  std::int64_t positions = 0;
};

/// Needles whose answer stands between these shares of their prompts.
struct DepthBin {
  Interval depth;
  std::int64_t hits = 0, needles = 0;
};

/// How well the model repeats passages of its context word by word.
struct QuoteMetrics {
  std::int64_t quotes = 0, right_to_the_end = 0;
  double tokens_right = 0;        // share of the quoted tokens that are the argmax
  double tokens_until_wrong = 0;  // mean over quotations
  double nll = 0;                 // mean over quoted tokens, nats
};

/// What the quantised cache does to the model. KL in nats against exact attention, over the vocabulary.
struct ModelMetrics {
  double ppl = 0, ppl_ratio = 1, ppl_ratio_error = 0, same_top = 1, mean_dp = 0, rms_dp = 0;
  double kld_mean = 0, kld_error = 0, kld_median = 0, kld_p90 = 0, kld_p95 = 0, kld_p99 = 0, kld_p999 = 0, kld_max = 0;
  std::vector<PositionBin> kld_by_position;
  std::vector<DepthBin> retrieval_by_depth;  // bins that have needles
  std::int64_t positions = 0;
  Intervals intervals;
  std::optional<double> retrieval;
  // Mean negative log-likelihood of the answers' tokens, the full stop left out, nats; none: no needles.
  std::optional<double> needle_nll;
  std::int64_t needle_hits = 0, needles = 0;
  std::optional<QuoteMetrics> quotes;  // none: no quotations were given
};

}  // namespace oscar
