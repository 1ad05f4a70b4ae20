// SPDX-License-Identifier: MIT
// Gradients by the history of caches against differences: a model whose history is moved a little predicts a little
// differently. Attention with a moved history is plain loops here.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <random>

#include "model/run/pass.hpp"
#include "support/support.hpp"
#include "unit/model/random_model.hpp"

namespace oscar {
namespace {

constexpr Windows kWindows{3, 5};

/// What is added to the keys and values of each cache where queries find them in the history, in native layout.
struct Move {
  std::map<int, std::vector<float>> key, value;
};

class MovedModel {
 public:
  MovedModel(ModelRunner& runner, TokenSequence tokens, std::int64_t first_position)
      : runner_(runner), tokens_({std::move(tokens)}), first_(first_position) {
    for (int layer = 0; layer < runner.config().num_layers; ++layer) {
      if (runner.config().blocks[static_cast<std::size_t>(layer)].attends()) rules_[layer] = runner.score_rule(layer);
    }
    draw();
  }

  /// The sum of log-likelihoods of the drawn tokens.
  [[nodiscard]] double likelihood(const Move& move, double amount) {
    double sum = 0;
    const std::vector<double> rows = log_likelihoods(move, amount);
    for (std::size_t t = 0; t < drawn_.size(); ++t) sum += rows[t * vocab() + drawn_[t]];
    return sum;
  }

 private:
  [[nodiscard]] std::size_t vocab() const { return static_cast<std::size_t>(runner_.config().vocab_size); }

  void draw() {
    const std::vector<double> rows = log_likelihoods({}, 0);
    const std::vector<float> draws = draws_for(0, tokens_[0].size());
    for (std::size_t t = 0; t < draws.size(); ++t) {
      double sum = 0;
      std::size_t token = 0;
      while (token + 1 < vocab() && (sum += std::exp(rows[t * vocab() + token])) <= draws[t]) ++token;
      drawn_.push_back(token);
    }
  }

  [[nodiscard]] std::vector<double> log_likelihoods(const Move& move, double amount) {
    Status silent;
    const int layers = runner_.config().num_layers;
    const auto pass = runner_.begin(tokens_, {.layers = layers, .first_positions = {first_}}, silent);
    const AttentionHook hook = [&](int layer, std::size_t, const QkvView& qkv, std::span<float> out) {
      attend(runner_.config().cache_of(layer), layer, qkv, move, amount, out);
      return true;
    };
    while (pass->layer() < layers) pass->step(hook, false);
    std::vector<float> logits(tokens_[0].size() * vocab());
    pass->final_states()->logits(0, logits);
    std::vector<double> rows(logits.begin(), logits.end());
    for (std::size_t t = 0; t < tokens_[0].size(); ++t) {
      const std::span<double> row = std::span(rows).subspan(t * vocab(), vocab());
      double sum = 0;
      for (const double x : row) sum += std::exp(x);
      for (double& x : row) x -= std::log(sum);
    }
    return rows;
  }

  void attend(int cache, int layer, const QkvView& qkv, const Move& move, double amount, std::span<float> out) {
    const ScoreRule& rule = rules_.at(layer);
    const std::int64_t tokens = qkv.q.num_tokens, d = qkv.q.head_dim, dv = qkv.v.head_dim, heads = qkv.k.num_heads;
    std::vector<float> q(static_cast<std::size_t>(d)), k = q, v(static_cast<std::size_t>(dv));
    const auto moved = [&](const std::map<int, std::vector<float>>& by, std::int64_t j, std::int64_t h, std::size_t i,
                           std::size_t dim) {
      if (!by.contains(cache)) return 0.0;
      const std::size_t row = static_cast<std::size_t>(j * heads + h) * dim;
      return amount * static_cast<double>(by.at(cache)[row + i]);
    };
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (int head = 0; head < qkv.q.num_heads; ++head) {
        const int kv = head / (qkv.q.num_heads / qkv.k.num_heads);
        qkv.q.row(t, head, q);
        std::vector<double> weights;
        double total = rule.sinks.empty() ? 0 : std::exp(rule.sinks[static_cast<std::size_t>(head)]);
        for (std::int64_t j = 0; j <= t; ++j) {
          const bool history = j >= kWindows.sink && j <= t - kWindows.recent;
          qkv.k.row(j, kv, k);
          double score = 0;
          for (std::size_t i = 0; i < k.size(); ++i) {
            score += q[i] * (k[i] + (history ? moved(move.key, j, kv, i, k.size()) : 0));
          }
          score /= std::sqrt(static_cast<double>(d));
          if (rule.soft_cap > 0) score = rule.soft_cap * std::tanh(score / rule.soft_cap);
          const bool seen = rule.reach == 0 || t - j < rule.reach;
          weights.push_back(seen ? std::exp(score) : 0);
          total += weights.back();
        }
        std::vector<double> sum(v.size());
        for (std::int64_t j = 0; j <= t; ++j) {
          const bool history = j >= kWindows.sink && j <= t - kWindows.recent;
          qkv.v.row(j, kv, v);
          for (std::size_t i = 0; i < v.size(); ++i) {
            sum[i] += weights[static_cast<std::size_t>(j)] / total *
                      (v[i] + (history ? moved(move.value, j, kv, i, v.size()) : 0));
          }
        }
        float* const row = out.data() + (t * qkv.q.num_heads + head) * dv;
        for (std::size_t i = 0; i < sum.size(); ++i) row[i] = static_cast<float>(sum[i]);
      }
    }
  }

  ModelRunner& runner_;
  std::vector<TokenSequence> tokens_;
  std::int64_t first_;
  std::map<int, ScoreRule> rules_;
  std::vector<std::size_t> drawn_;
};

struct Gradients {
  std::map<int, std::vector<float>> key, value;  // by cache, of all layers that read it
};

Gradients gradients_of(ModelRunner& runner, const TokenSequence& tokens, std::int64_t first_position) {
  Gradients found;
  const auto add = [](std::vector<float>& sum, std::span<const float> part) {
    sum.resize(part.size());
    for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
  };
  const std::vector<TokenSequence> sequences{tokens};
  Status silent;
  runner.history_gradients(
      {sequences, {first_position}, kWindows},
      [&](int layer, std::size_t, std::span<const float> key, std::span<const float> value) {
        const int cache = runner.config().cache_of(layer);
        add(found.key[cache], key), add(found.value[cache], value);
      },
      silent);
  return found;
}

/// A random direction in which likelihoods are to change by about 0.01 for an amount of 1.
std::map<int, std::vector<float>> direction(const std::map<int, std::vector<float>>& gradients, double& slope) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::map<int, std::vector<float>> by;
  slope = 0;
  for (const auto& [cache, gradient] : gradients) {
    for (const float g : gradient) {
      by[cache].push_back(normal(random) + (g > 0 ? .3F : -.3F));  // uphill, or rounding would be seen first
      slope += static_cast<double>(g) * static_cast<double>(by[cache].back());
    }
  }
  return by;
}

TEST_CASE("gradients by the history of caches are what differences say") {
  test::for_each_random_model([&](const std::string&, const fs::path& folder) {
    const std::unique_ptr<ModelRunner> runner = open_model(folder);
    const TokenSequence tokens = test::some_tokens(24);
    for (const std::int64_t first : {0, 5}) {
      const Gradients gradients = gradients_of(*runner, tokens, first);
      MovedModel model(*runner, tokens, first);
      for (const bool keys : {true, false}) {
        CAPTURE(keys);
        double slope = 0;
        Move move;
        (keys ? move.key : move.value) = direction(keys ? gradients.key : gradients.value, slope);
        const double amount = 0.02 / slope;
        const double change = model.likelihood(move, amount) - model.likelihood(move, -amount);
        CHECK(slope > 0);
        CHECK(change == doctest::Approx(0.04).epsilon(0.03));
      }
    }
  });
}

}  // namespace
}  // namespace oscar
