// SPDX-License-Identifier: MIT
// Rotation and attention against textbook loops in fp64 that share nothing with the kernels.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/exp.hpp"
#include "base/threads.hpp"
#include "kernels/cpu/ops.hpp"
#include "support/support.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar {
namespace {

using test::gaussian;

/// Random exact and mixed-precision attention of one sequence.
struct Case {
  int heads, kv_heads, dim;
  std::int64_t keys;
  std::vector<std::int64_t> positions;
  Windows windows;
  Precision precision;
  MatrixStack back;
  std::optional<ScoreRule> rule;
  std::vector<float> q, k, v, mixed_q, window_k, history_k, window_v, history_v;

  Case(int heads_, int kv_heads_, int dim_, std::int64_t keys_, std::vector<std::int64_t> positions_, Windows windows_,
       Precision precision_)
      : heads(heads_),
        kv_heads(kv_heads_),
        dim(dim_),
        keys(keys_),
        positions(std::move(positions_)),
        windows(windows_),
        precision(precision_),
        back(kv_heads, dim) {
    const std::size_t queries = positions.empty() ? static_cast<std::size_t>(keys) : positions.size();
    const std::size_t q_size = queries * static_cast<std::size_t>(heads * dim);
    const std::size_t k_size = static_cast<std::size_t>(keys * kv_heads * dim);
    q = gaussian(q_size, 1), k = gaussian(k_size, 2), v = gaussian(k_size, 3);
    mixed_q = gaussian(q_size, 4), window_k = gaussian(k_size, 5), history_k = gaussian(k_size, 6);
    window_v = gaussian(k_size, 7), history_v = gaussian(k_size, 8);
    const std::vector<float> matrix = gaussian(back.data.size(), 9, 0.3F);
    std::copy(matrix.begin(), matrix.end(), back.data.begin());
  }
  [[nodiscard]] std::int64_t queries() const {
    return positions.empty() ? keys : static_cast<std::int64_t>(positions.size());
  }
  [[nodiscard]] QkvView exact() const {
    return {heads_view(q, queries(), heads, dim), heads_view(k, keys, kv_heads, dim),
            heads_view(v, keys, kv_heads, dim)};
  }
  [[nodiscard]] cpu::MixedAttention mixed() const {
    const auto rows = [&](const std::vector<float>& x) { return heads_view(x, keys, kv_heads, dim); };
    return {.q = heads_view(mixed_q, queries(), heads, dim),
            .window_k = rows(window_k),
            .history_k = rows(history_k),
            .window_v = rows(window_v),
            .history_v = rows(history_v),
            .query_positions = positions,
            .windows = windows,
            .native_from_rotated = &back,
            .precision = precision,
            .scores = rule ? &*rule : nullptr};
  }
};

double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

/// Of scores of the keys 0, 1, …, the query standing at the last.
std::vector<double> shares_by_rule(std::vector<double> scores, const ScoreRule& rule, int head) {
  const std::size_t keys = scores.size();
  double sum = rule.sinks.empty() ? 0 : std::exp(double{rule.sinks[static_cast<std::size_t>(head)]});
  for (std::size_t j = 0; j < keys; ++j) {
    const double s = rule.soft_cap > 0 ? rule.soft_cap * std::tanh(scores[j] / rule.soft_cap) : scores[j];
    const bool seen = rule.reach == 0 || keys - 1 - j < static_cast<std::size_t>(rule.reach);
    sum += scores[j] = seen ? std::exp(s) : 0;
  }
  for (double& share : scores) share /= sum;
  return scores;
}

std::vector<double> softmax(const std::vector<double>& scores) {
  const double highest = *std::max_element(scores.begin(), scores.end());
  std::vector<double> p;
  double sum = 0;
  for (const double s : scores) sum += p.emplace_back(std::exp(s - highest));
  for (double& x : p) x /= sum;
  return p;
}

struct Textbook {
  std::vector<double> scores, mixed_scores, output, mixed_output;
};

/// One query of one head, straight from the definition.
Textbook textbook(const Case& c, std::int64_t query, int head) {
  const std::int64_t position = c.positions.empty() ? query : c.positions[static_cast<std::size_t>(query)];
  const int kv_head = head / (c.heads / c.kv_heads);
  const auto row = [&](const std::vector<float>& x, std::int64_t j) {
    return x.data() + (j * c.kv_heads + kv_head) * c.dim;
  };
  const auto exactly = [&](std::int64_t j) { return j < c.windows.sink || j > position - c.windows.recent; };
  const std::int64_t q_row = (query * c.heads + head) * c.dim;
  Textbook t;
  for (std::int64_t j = 0; j <= position; ++j) {
    t.scores.push_back(dot(c.q.data() + q_row, row(c.k, j), c.dim) / std::sqrt(double(c.dim)));
    t.mixed_scores.push_back(dot(c.mixed_q.data() + q_row, row(exactly(j) ? c.window_k : c.history_k, j), c.dim) /
                             std::sqrt(double(c.dim)));
  }
  const std::vector<double> p = softmax(t.scores);
  const std::vector<double> p_hat = c.rule ? shares_by_rule(t.mixed_scores, *c.rule, head) : softmax(t.mixed_scores);
  const auto size = static_cast<std::size_t>(c.dim);
  t.output.resize(size), t.mixed_output.resize(size);
  std::vector<double> rotated(size);
  for (std::int64_t j = 0; j <= position; ++j) {
    for (std::size_t i = 0; i < size; ++i) {
      t.output[i] += p[static_cast<std::size_t>(j)] * row(c.v, j)[i];
      rotated[i] += p_hat[static_cast<std::size_t>(j)] * row(exactly(j) ? c.window_v : c.history_v, j)[i];
    }
  }
  const auto rounded = [&](double x) {
    return c.precision == Precision::kServing ? double{round_to_bf16(float(x))} : x;
  };
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < size; ++j)
      t.mixed_output[j] += rounded(rotated[i]) * rounded(c.back[kv_head][i * size + j]);
  }
  return t;
}

AttentionErrors textbook_errors(const Case& c, int head) {
  AttentionErrors errors;
  for (std::int64_t i = 0; i < c.queries(); ++i) {
    const Textbook t = textbook(c, i, head);
    const std::vector<double> p = softmax(t.scores);
    const std::vector<double> p_hat = softmax(t.mixed_scores);
    double kl = 0, mean = 0, mean_error = 0;
    for (std::size_t j = 0; j < p.size(); ++j) {
      kl += p[j] * (std::log(std::max(p[j], 1e-300)) - std::log(std::max(p_hat[j], 1e-300)));
      mean += t.scores[j] / double(p.size());
      mean_error += (t.mixed_scores[j] - t.scores[j]) / double(p.size());
    }
    for (std::size_t j = 0; j < p.size(); ++j) {
      errors.logit_error += std::pow(t.mixed_scores[j] - t.scores[j] - mean_error, 2);
      errors.logit_norm += std::pow(t.scores[j] - mean, 2);
    }
    const std::int64_t position = c.positions.empty() ? i : c.positions[static_cast<std::size_t>(i)];
    for (std::size_t j = 0; j < p.size(); ++j) {
      const auto key = static_cast<std::int64_t>(j);
      if (key < c.windows.sink || key > position - c.windows.recent || p[j] < 0.05) continue;
      errors.needle_mass += p[j];
      errors.needle_kept += std::min(p[j], p_hat[j]);
    }
    const auto product = [](const std::vector<double>& a, const std::vector<double>& b) {
      return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    };
    errors.output_cosine += product(t.output, t.mixed_output) /
                            std::sqrt(product(t.output, t.output) * product(t.mixed_output, t.mixed_output));
    for (std::size_t j = 0; j < t.output.size(); ++j) {
      errors.output_error += std::pow(t.output[j] - t.mixed_output[j], 2);
      errors.output_norm += std::pow(t.output[j], 2);
    }
    errors.softmax_kl += kl;
    errors.query_kl.push_back(kl);
    ++errors.queries;
  }
  return errors;
}

std::vector<Case> cases() {
  return {Case(3, 1, 8, 150, {}, {4, 16}, Precision::kExact),
          Case(4, 2, 16, 90, {}, {0, 0}, Precision::kExact),
          Case(5, 1, 8, 200, {0, 3, 3, 70, 71, 150, 199}, {6, 40}, Precision::kExact),
          Case(2, 2, 8, 40, {}, {64, 256}, Precision::kServing),
          Case(6, 2, 8, 1, {}, {0, 1}, Precision::kExact),
          Case(2, 1, 8, 120, {}, {10, 0}, Precision::kServing)};
}

}  // namespace

TEST_CASE("exp of what softmax feeds it is accurate to the last bits") {
  std::vector<double> x;
  std::vector<float> y;
  for (int i = 0; i <= 7000; ++i) x.push_back(-0.1 * i), y.push_back(-0.0124F * static_cast<float>(i));
  std::vector<double> exp_x = x;
  std::vector<float> exp_y = y;
  exp_in_place(std::span<double>(exp_x));
  exp_in_place(std::span<float>(exp_y));
  for (std::size_t i = 0; i < x.size(); ++i) {
    REQUIRE(std::abs(exp_x[i] / std::exp(x[i]) - 1) < 1e-15);
    REQUIRE(std::abs(exp_y[i] / std::exp(double{y[i]}) - 1) < 3e-7);
  }
  std::vector<double> ends{0.0, -709.0, -1e300, -INFINITY};
  exp_in_place(std::span<double>(ends));
  CHECK(ends == std::vector<double>{1.0, 0.0, 0.0, 0.0});
}

TEST_CASE("rotation uses the matrix of the head's group and rounds as a server does") {
  const std::vector<float> x = gaussian(130 * 4 * 8, 11);
  MatrixStack matrices(2, 8);
  for (std::size_t i = 0; i < matrices.data.size(); ++i) matrices.data[i] = std::sin(static_cast<double>(i * i));
  for (const Precision precision : {Precision::kExact, Precision::kServing}) {
    const auto rounded = [&](double v) {
      return precision == Precision::kServing ? round_to_bf16(float(v)) : float(v);
    };
    std::vector<float> rows(x.size());
    cpu::rotate(heads_view(x, 130, 4, 8), matrices, precision, rows);
    for (std::size_t row = 0; row < 130 * 4; ++row) {
      for (std::size_t i = 0; i < 8; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < 8; ++j) {
          const double m = matrices[static_cast<int>(row % 4 / 2)][j * 8 + i];
          sum += double{rounded(x[row * 8 + j])} * (precision == Precision::kServing ? rounded(m) : m);
        }
        REQUIRE(rows[row * 8 + i] == doctest::Approx(rounded(sum)).epsilon(1e-6));
      }
    }
  }
}

namespace {

/// Of each: none, a soft cap, a reach, sinks, and all of them.
std::vector<Case> attended_cases() {
  std::vector<Case> all;
  for (const Case& c : cases()) {
    const std::vector<float> sinks = gaussian(static_cast<std::size_t>(c.heads), 10, 2);
    all.push_back(c);
    for (const ScoreRule& rule :
         {ScoreRule{1.5, 0, {}}, ScoreRule{0, 13, {}}, ScoreRule{0, 0, sinks}, ScoreRule{2, 50, sinks}}) {
      all.push_back(c);
      all.back().rule = rule;
    }
  }
  return all;
}

}  // namespace

TEST_CASE("attend equals the definition for every shape of windows, groups and queries, and every score rule") {
  for (const Case& c : attended_cases()) {
    std::vector<float> out(c.mixed_q.size());
    cpu::attend(c.mixed(), out);
    // Serving rounds outputs: one of them may fall to the other side of a tie.
    const double tolerance = c.precision == Precision::kServing ? 2e-2 : 2e-5;
    for (std::int64_t i = 0; i < c.queries(); ++i) {
      for (int head = 0; head < c.heads; ++head) {
        const std::vector<double> expected = textbook(c, i, head).mixed_output;
        for (int j = 0; j < c.dim; ++j) {
          const double got = out[static_cast<std::size_t>((i * c.heads + head) * c.dim + j)];
          REQUIRE(std::abs(got - expected[static_cast<std::size_t>(j)]) < tolerance);
        }
      }
    }
  }
}

namespace {

std::vector<AttentionErrors> compared(const Case& c) {
  const cpu::MixedAttention mixed = c.mixed();
  return cpu::compare_attention(c.exact(), mixed, {{mixed.history_k}, {0}}, {{mixed.history_v}, {0}}).front();
}

}  // namespace

TEST_CASE("compare_attention equals the definition, head by head and query by query") {
  const auto near = [](double x) { return doctest::Approx(x).epsilon(1e-9); };
  int needles = 0;
  for (const Case& c : cases()) {
    const std::vector<AttentionErrors> errors = compared(c);
    REQUIRE(errors.size() == static_cast<std::size_t>(c.heads));
    for (int head = 0; head < c.heads; ++head) {
      const AttentionErrors expected = textbook_errors(c, head);
      const AttentionErrors& got = errors[static_cast<std::size_t>(head)];
      CHECK(got.queries == expected.queries);
      CHECK(got.softmax_kl == near(expected.softmax_kl));
      CHECK(got.logit_error == near(expected.logit_error));
      CHECK(got.logit_norm == near(expected.logit_norm));
      CHECK(got.output_error == near(expected.output_error));
      CHECK(got.output_norm == near(expected.output_norm));
      CHECK(got.output_cosine == near(expected.output_cosine));
      CHECK(got.needle_mass == near(expected.needle_mass));
      CHECK(got.needle_kept == near(expected.needle_kept));
      needles += got.needle_mass > got.needle_kept ? 1 : 0;
      REQUIRE(got.query_kl.size() == expected.query_kl.size());
      for (std::size_t i = 0; i < got.query_kl.size(); ++i) REQUIRE(got.query_kl[i] == near(expected.query_kl[i]));
    }
  }
  CHECK(needles > 5);  // heads that have needles, and lose some of them
}

TEST_CASE("candidates that are compared together give the same bits as each alone") {
  const Case c(4, 2, 8, 70, {}, {3, 9}, Precision::kServing);
  const cpu::MixedAttention mixed = c.mixed();
  const cpu::Histories keys{{mixed.history_k, std::nullopt, mixed.history_v}, {0, 1, 0, 2}};
  const cpu::Histories values{{mixed.history_v, std::nullopt}, {0, 0, 1, 1}};
  const auto together = cpu::compare_attention(c.exact(), mixed, keys, values);
  REQUIRE(together.size() == 4);
  for (std::size_t i = 0; i < together.size(); ++i) {
    const cpu::Histories key{{keys.rows[keys.of_candidate[i]]}, {0}};
    const cpu::Histories value{{values.rows[values.of_candidate[i]]}, {0}};
    const auto alone = cpu::compare_attention(c.exact(), mixed, key, value).front();
    for (std::size_t head = 0; head < alone.size(); ++head) {
      CHECK(together[i][head].query_kl == alone[head].query_kl);
      CHECK(together[i][head].output_error == alone[head].output_error);
      CHECK(together[i][head].logit_error == alone[head].logit_error);
    }
  }
  CHECK(together[0][0].softmax_kl != together[1][0].softmax_kl);
  CHECK(together[0][0].output_error != together[2][0].output_error);
}

TEST_CASE("probabilities below 1e-300 count as 1e-300") {
  Case c(1, 1, 8, 2, {1}, {0, 2}, Precision::kExact);
  std::fill(c.q.begin(), c.q.end(), 0.0F);
  std::fill(c.mixed_q.begin(), c.mixed_q.end(), 0.0F);
  c.mixed_q[0] = 1e4F;
  c.window_k.assign(c.window_k.size(), 0.0F);
  c.window_k[0] = 1.0F;
  const double kl = compared(c)[0].softmax_kl;
  CHECK(kl == doctest::Approx(std::log(0.5) + 0.5 * 690.7755278982137));
}

TEST_CASE("attention does not depend on the number of threads") {
  const Case c(3, 1, 8, 333, {}, {4, 16}, Precision::kServing);
  std::vector<std::vector<float>> outs;
  std::vector<double> kls;
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    outs.emplace_back(c.mixed_q.size());
    cpu::attend(c.mixed(), outs.back());
    for (const auto& errors : compared(c)) kls.push_back(errors.softmax_kl + errors.output_error);
  }
  set_num_threads(0);
  CHECK(outs[0] == outs[1]);
  CHECK(outs[0] == outs[2]);
  for (std::size_t i = 0; i < 3; ++i) CHECK((kls[i] == kls[i + 3] && kls[i] == kls[i + 6]));
}

}  // namespace oscar
