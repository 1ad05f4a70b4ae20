// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <span>

#include "serve/serve_check.hpp"

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
