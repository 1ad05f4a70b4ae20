// SPDX-License-Identifier: MIT
// What a model predicts at one position with a quantised cache, beside what it predicts there with exact attention, as
// llama.cpp's perplexity tool defines it (--kl-divergence). A position's prediction is a row of logits over the
// vocabulary; all sums are in fp64.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace oscar {

/// One position of a text that has a next token. All logarithms are natural.
struct PositionFigures {
  double nll = 0;         // -log p^(next), with the quantised cache
  double nll_change = 0;  // log p(next) - log p^(next), p with exact attention
  double kld = 0;         // sum over tokens v with log p(v) > -16 of p(v) (log p(v) - log p^(v))
  double dp = 0;          // p^(next) - p(next)
  bool same_top = false;  // whether both find the same token the most likely one
};

/// The distribution that a row of logits stands for. Fields are of the row that was read last.
class TokenDistribution {
 public:
  void read(std::span<const float> logits);

  /// log(sum_i exp(logit_i))
  [[nodiscard]] double log_sum() const { return log_sum_; }
  [[nodiscard]] double log_probability(std::size_t token) const { return logits_[token] - log_sum_; }
  /// The first of the most likely tokens.
  [[nodiscard]] std::size_t top() const { return top_; }
  /// sum over v with log p(v) > -16 of p(v) (log p(v) - log q(v)), p this distribution and q the other.
  [[nodiscard]] double divergence(const TokenDistribution& other) const;

 private:
  std::span<const float> logits_;
  std::vector<double> weights_;  // exp(logit - highest)
  double weight_sum_ = 0, log_sum_ = 0;
  std::size_t top_ = 0;
};

/// Compares two distributions of the token that came next.
[[nodiscard]] PositionFigures compare(const TokenDistribution& exact, const TokenDistribution& quantised,
                                      std::size_t next);

}  // namespace oscar
