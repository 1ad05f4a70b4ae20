// SPDX-License-Identifier: MIT
#include "method/refine.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/status.hpp"
#include "base/threads.hpp"
#include "method/cayley.hpp"
#include "method/matrix.hpp"

namespace oscar {
namespace {

/// (tokens, heads, d): x matrices, in fp32.
std::vector<float> rotated(const HeadsView& x, const MatrixStack& matrices, Backend& backend) {
  std::vector<float> rows(static_cast<std::size_t>(x.num_tokens * x.num_heads * x.head_dim));
  backend.rotate(x, matrices, Precision::kExact, rows);
  return rows;
}

/// Of each KV head: its mean key in transformed coordinates; zero without one.
std::vector<float> transformed_mean(const Transform& key, int num_heads, Backend& backend) {
  const int dim = key.rotation.dim;
  std::vector<float> mean(static_cast<std::size_t>(num_heads * dim));
  if (key.mean.empty()) return mean;
  for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = static_cast<float>(key.mean[i % key.mean.size()]);
  return rotated(heads_view(mean, 1, num_heads, dim), key.rotation, backend);
}

/// One KV head of one sequence, for each KV head.
std::vector<KeyReads> reads_of(const SampledSequence& sequence, const Transform& key, Backend& backend) {
  const HeadsView q = heads_view(sequence.q, "q"), k = heads_view(sequence.k, "k");
  const auto dim = static_cast<std::size_t>(k.head_dim), heads = static_cast<std::size_t>(k.num_heads);
  const std::size_t group = static_cast<std::size_t>(q.num_heads) / heads;
  const std::vector<float> keys = rotated(k, key.rotation, backend), queries = rotated(q, key.read(), backend);
  const std::vector<float> mean = transformed_mean(key, k.num_heads, backend);
  std::vector<KeyReads> reads(heads);
  for (std::size_t h = 0; h < heads; ++h) {
    reads[h].head_dim = k.head_dim;
    for (std::size_t t = 0; t < static_cast<std::size_t>(k.num_tokens); ++t) {
      for (std::size_t c = 0; c < dim; ++c) {
        reads[h].keys.push_back(keys[(t * heads + h) * dim + c] - mean[h * dim + c]);
      }
    }
    for (std::size_t i = 0; i < sequence.query_positions.size(); ++i) {
      const auto begin = queries.begin() + static_cast<std::ptrdiff_t>((i * heads + h) * group * dim);
      reads[h].queries.insert(reads[h].queries.end(), begin, begin + static_cast<std::ptrdiff_t>(group * dim));
      reads[h].positions.insert(reads[h].positions.end(), group, sequence.query_positions[i]);
    }
  }
  return reads;
}

Matrix identity(int dim) { return MatrixStack::identity(dim).data; }

/// Descends with one matrix for all of `reads`.
class Descent {
 public:
  Descent(const std::vector<const KeyReads*>& reads, const RowCodec& codec, Windows windows,
          const RefineOptions& options, Backend& backend)
      : reads_(backend.hold(reads, codec, windows)),
        options_(options),
        dim_(reads.front()->head_dim),
        queries_(std::accumulate(
            reads.begin(), reads.end(), 0.0,
            [](double sum, const KeyReads* each) { return sum + static_cast<double>(each->positions.size()); })),
        turn_(identity(dim_)),
        first_(turn_.size()),
        second_(turn_.size()) {}

  struct Result {
    Matrix turn;
    double before = 0, after = 0;  // mean softmax KL of the sample
  };

  Result run() {
    Result result{turn_, 0, 0};
    for (int step = 0; step <= options_.steps; ++step) {
      throw_if_interrupted();
      const KlGradient now = evaluate();
      if (step == 0) result.before = result.after = now.softmax_kl;
      if (now.softmax_kl < result.after) result = {turn_, result.before, now.softmax_kl};
      if (step < options_.steps) turn_ = multiply(turn_, cayley(adam_step(now.gradient, step), dim_), dim_);
    }
    return result;
  }

 private:
  /// The mean KL over queries, and its gradient.
  [[nodiscard]] KlGradient evaluate() const {
    KlGradient mean = reads_->gradient(std::vector<float>(turn_.begin(), turn_.end()));
    mean.softmax_kl /= queries_;
    for (double& value : mean.gradient) value /= queries_;
    return mean;
  }

  /// The skew matrix to turn by; Adam as published, its rate falling to 0.
  Matrix adam_step(const Matrix& gradient, int step) {
    constexpr double kFirst = 0.9, kSecond = 0.99;
    const auto d = static_cast<std::size_t>(dim_);
    const double rate = options_.rate * (1 - static_cast<double>(step) / options_.steps);
    const double bias1 = 1 - std::pow(kFirst, step + 1), bias2 = 1 - std::pow(kSecond, step + 1);
    Matrix skew(d * d);
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        const std::size_t at = i * d + j;
        const double g = (gradient[at] - gradient[j * d + i]) / 2;
        first_[at] = kFirst * first_[at] + (1 - kFirst) * g;
        second_[at] = kSecond * second_[at] + (1 - kSecond) * g * g;
        skew[at] = -rate * (first_[at] / bias1) / (std::sqrt(second_[at] / bias2) + 1e-12);
      }
    }
    return skew;
  }

  std::unique_ptr<HeldKeyReads> reads_;
  RefineOptions options_;
  int dim_;
  double queries_;
  Matrix turn_, first_, second_;
};

void turn(MatrixStack& stack, int index, const Matrix& by) {
  const Matrix product = multiply(stack[index], by, stack.dim);
  std::transform(product.begin(), product.end(), stack[index].begin(),
                 [](double value) { return static_cast<double>(static_cast<float>(value)); });
}

/// Of one layer.
void refine_key(std::span<const SampledSequence> sample, const RowCodec& codec, Windows windows,
                const RefineOptions& options, SideTransform& key, Backend& backend) {
  std::vector<std::vector<KeyReads>> reads;  // [sequence][KV head]
  for (const SampledSequence& sequence : sample) reads.push_back(reads_of(sequence, key, backend));
  const int count = key.rotation.count;
  std::vector<Descent::Result> found(static_cast<std::size_t>(count));
  parallel_for(found.size(), [&](std::size_t m) {
    std::vector<const KeyReads*> own;
    for (const auto& sequence : reads) {
      for (std::size_t head = 0; head < sequence.size(); ++head) {
        if (count == 1 || head == m) own.push_back(&sequence[head]);
      }
    }
    found[m] = Descent(own, codec, windows, options, backend).run();
  });
  std::vector<double> before, after;
  for (int m = 0; m < count; ++m) {
    const Descent::Result& each = found[static_cast<std::size_t>(m)];
    turn(key.rotation, m, each.turn);
    if (key.read_rotation.count > 0) turn(key.read_rotation, m, each.turn);
    before.push_back(each.before);
    after.push_back(each.after);
  }
  key.scores["refine"] = {{"sample", describe(sample, options.sample)},
                          {"steps", options.steps},
                          {"softmax_kl_before", before},
                          {"softmax_kl_after", after}};
}

}  // namespace

void refine_keys(std::span<const std::span<const SampledSequence>> samples, const RowCodec& codec, Windows windows,
                 const RefineOptions& options, std::vector<LayerRotation>& layers, Backend& backend, Status& status) {
  parallel_for(layers.size(), [&](std::size_t i) {
    if (!samples[i].empty()) return refine_key(samples[i], codec, windows, options, layers[i].key, backend);
    status.warning("layer " + std::to_string(layers[i].layer_id) +
                   ": no sequence is longer than the windows, so the keys are not refined");
  });
}

}  // namespace oscar
