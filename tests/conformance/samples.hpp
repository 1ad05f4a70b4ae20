// SPDX-License-Identifier: MIT
// What the tests of backends share: the cases and tolerances of cases.json, random activations of every type and head
// size, outputs between guards, sequences with transforms, positions, score rules and codecs of every kind, and one
// line per measurement, which scripts/gpu/test.sh collects.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.hpp"
#include "support/support.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar::test {

struct Shape {
  DType dtype;
  int head_dim;
  std::int64_t tokens;
};

/// Which cases of a list: those up to this size.
enum class Tier { kSmall, kMedium, kLarge };
[[nodiscard]] std::vector<Shape> shapes_of(const std::string& list, Tier tier);
[[nodiscard]] std::vector<RowCodec> row_codecs(Tier tier);
/// How far results of an operation may be apart; backends of some kind may have a figure of their own.
[[nodiscard]] double tolerance(const std::string& what, const std::string& kind = {});

/// Gaussian activations with a few large channels.
[[nodiscard]] Tensor activations(const Shape& shape, int heads, unsigned seed);
[[nodiscard]] std::vector<double> gaussian(std::size_t size, unsigned seed);
/// Ordinary rows, and rows that are zero, constant, huge, tiny or of few values; some have a zero of either sign as
/// their smallest value, or a clip threshold of zero.
[[nodiscard]] std::vector<float> codec_rows(std::size_t count, std::size_t dim);
[[nodiscard]] MatrixStack gaussian_matrices(int count, int dim, unsigned seed);
[[nodiscard]] MatrixStack symmetric_matrices(int count, int dim, unsigned seed);

/// A random matrix, a covariance of falling spectrum, one of a single cluster but for one vector, and zero.
[[nodiscard]] MatrixStack eigenproblems(int dim);

/// Formats of the coded cache, one a KV head: both classes, every width somewhere, channels that are not stored. dim is
/// a multiple of 8.
[[nodiscard]] std::shared_ptr<const std::vector<CodedFormat>> coded_formats(int kv_heads, int dim);

/// Prints the measurement and fails unless error <= tolerance.
void check_error(const std::string& what, const Shape& shape, double error, double tolerance);

/// An output between two guards. Starts as NaN, so that what is not written shows.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::size_t size) : values_(size + 2 * kGuard, static_cast<T>(std::nan(""))) {
    for (std::size_t i = 0; i < kGuard; ++i) values_[i] = values_[size + kGuard + i] = kSentinel;
  }
  [[nodiscard]] std::span<T> get() { return std::span(values_).subspan(kGuard, values_.size() - 2 * kGuard); }
  /// True if nothing outside was written and everything inside was.
  [[nodiscard]] bool intact() {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (values_[i] != kSentinel || values_[values_.size() - 1 - i] != kSentinel) return false;
    }
    for (const T value : get()) {
      if (std::isnan(value)) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr T kSentinel = static_cast<T>(-12345.75);
  std::vector<T> values_;
};

/// max |a - b|; infinite if a difference is NaN.
template <class A, class B>
[[nodiscard]] double largest_difference(const A& a, const B& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
  }
  return largest;
}
template <class A>
[[nodiscard]] double largest_magnitude(const A& a) {
  return largest_difference(a, std::vector<double>(a.size()));
}

/// True if rounding to bfloat16 would change nothing.
[[nodiscard]] bool all_bf16(std::span<const float> values);

/// Over the matrices: the largest |a - b| / |b|, Frobenius norms.
[[nodiscard]] double relative_error(const MatrixStack& a, const MatrixStack& b);

/// A sequence and its transforms, with a read side of its own for keys and for values of another size than keys.
struct Sequence {
  Shape shape;
  int heads, kv_heads;
  std::vector<std::int64_t> positions;
  Transform key, value;
  Tensor q, k, v, decoded_k, decoded_v;
  std::optional<ScoreRule> rule;

  /// positions: of the queries; none: one at each key. value_dim: 0 for that of the keys.
  Sequence(const Shape& shape_, int heads_, int kv_heads_, std::vector<std::int64_t> positions_, int value_dim = 0);
  /// The input that holds it; rotated: with the transforms, else with the histories of their own, if there are.
  [[nodiscard]] SequenceInput input(Precision precision, bool rotated = true) const;
  /// Without transforms, the history of the keys, or of both sides, is rows of their own.
  [[nodiscard]] Sequence with_history(bool of_values) && {
    decoded_k = activations({DType::kF32, shape.head_dim, shape.tokens}, kv_heads, 47);
    const std::span<float> keys = decoded_k.values<float>();  // of very different sizes, some zero
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] *= std::ldexp(i / shape.head_dim % 9 == 8 ? 0.0F : 1.0F, -static_cast<int>(i / shape.head_dim % 9));
    }
    if (of_values) decoded_v = activations({DType::kF32, value.rotation.dim, shape.tokens}, kv_heads, 48);
    return std::move(*this);
  }
  [[nodiscard]] std::size_t out_size() const {
    return static_cast<std::size_t>(q.shape[0]) * static_cast<std::size_t>(heads * value.rotation.dim);
  }
};

[[nodiscard]] std::vector<Sequence> sequences_of(Tier tier);

/// Both sides, one side, none; packed rows of the coded cache; whole rows and groups, with and without clipping, 4
/// levels and more.
[[nodiscard]] std::vector<HistoryCodecs> codecs_for(const Sequence& s);
/// A codec of the coded cache: coded_formats().
[[nodiscard]] HistoryCodec coded(int kv_heads, int dim);
/// Score rules with a soft cap, a short reach, sinks, and all of them. `heads`: of the queries.
[[nodiscard]] std::vector<ScoreRule> score_rules(int heads);

inline const std::vector<Windows> kWindows{{4, 16}, {0, 0}, {0, 40}, {10, 0}, {64, 256}};
inline const std::vector<Windows> kSmallWindows{{4, 7}, {0, 0}};

}  // namespace oscar::test
