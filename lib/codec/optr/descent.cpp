// SPDX-License-Identifier: MIT
#include "codec/optr/descent.hpp"

#include <algorithm>
#include <cmath>

#include "base/status.hpp"
#include "base/threads.hpp"
#include "codec/optr/exponential.hpp"
#include "kernels/products.hpp"

namespace oscar::optr {
namespace {

class Adam {
 public:
  Adam(std::span<const double> start, std::size_t dim, double rate)
      : start_(start.begin(), start.end()), dim_(dim), rate_(rate), a_(dim * dim), first_(a_), second_(a_), turn_(a_) {
    turn_ = turn_of(a_, dim_);
  }

  [[nodiscard]] std::vector<float> rotation() const {
    const Matrix now = times(start_, turn_);
    return {now.begin(), now.end()};
  }

  /// gradient: Loss::gradient at rotation().
  void step(const Matrix& gradient) {
    constexpr double kFirst = 0.9, kSecond = 0.999;  // Adam's own
    ++steps_;
    const Matrix by_a = pull_back(a_, times(turn_, gradient), dim_);
    const double bias1 = 1 - std::pow(kFirst, steps_), bias2 = 1 - std::pow(kSecond, steps_);
    for (std::size_t i = 0; i < a_.size(); ++i) {
      first_[i] = kFirst * first_[i] + (1 - kFirst) * by_a[i];
      second_[i] = kSecond * second_[i] + (1 - kSecond) * by_a[i] * by_a[i];
      a_[i] -= rate_ * (first_[i] / bias1) / (std::sqrt(second_[i] / bias2) + 1e-8);
    }
    turn_ = turn_of(a_, dim_);
  }

 private:
  [[nodiscard]] Matrix times(const Matrix& a, const Matrix& b) const {
    Matrix out(a.size());
    square_product(a, false, b, dim_, out);
    return out;
  }

  Matrix start_;
  std::size_t dim_;
  double rate_;
  Matrix a_, first_, second_, turn_;
  int steps_ = 0;
};

/// The mean over sequences first, first + 1, … modulo `of`.
Loss mean_loss(const LossOf& loss, std::span<const float> rotation, std::size_t first, std::size_t count,
               std::size_t of) {
  std::vector<Loss> parts(count);
  parallel_for(count, [&](std::size_t i) { parts[i] = loss((first + i) % of, rotation); });
  Loss mean{0, Matrix(rotation.size())};
  for (const Loss& part : parts) {
    mean.value += part.value / static_cast<double>(count);
    for (std::size_t j = 0; j < rotation.size(); ++j) mean.gradient[j] += part.gradient[j] / static_cast<double>(count);
  }
  return mean;
}

}  // namespace

std::pair<std::vector<float>, OptrHead> descend(const LossOf& loss, std::span<const double> start, std::size_t dim,
                                                std::size_t sequences, const OptrOptions& options) {
  const std::size_t held_out = std::max<std::size_t>(1, sequences / 4), fitted = sequences - held_out;
  const std::size_t together = std::min(options.sequences_per_step, fitted);
  Adam adam(start, dim, options.rate);
  for (int step = 0; step < options.steps; ++step) {
    throw_if_interrupted();
    adam.step(mean_loss(loss, adam.rotation(), static_cast<std::size_t>(step) * together, together, fitted).gradient);
  }
  const std::vector<float> before(start.begin(), start.end()), after = adam.rotation();
  const OptrHead head{mean_loss(loss, before, fitted, held_out, sequences).value,
                      mean_loss(loss, after, fitted, held_out, sequences).value};
  return {head.kept() ? after : before, head};
}

}  // namespace oscar::optr
