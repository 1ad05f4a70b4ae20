// SPDX-License-Identifier: MIT
// Operations on two backends: sums over tokens, row by row, eigenproblems, and held sequences.
#include "unit/kernels/agreement.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace oscar::test {

namespace {

/// max |a - b| in units of the last place of b, for 24 or 8 bits of mantissa.
double largest_ulps(std::span<const float> a, std::span<const float> b, int mantissa_bits) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    int exponent = 0;
    (void)std::frexp(b[i], &exponent);
    largest = std::max(largest, std::abs(double{a[i]} - b[i]) / std::ldexp(1.0, exponent - mantissa_bits));
  }
  return largest;
}

template <class T>
double differing(std::span<const T> a, std::span<const T> b) {
  double count = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  return count;
}
template <class T>
double differing(const std::vector<T>& a, const std::vector<T>& b) {
  return differing(std::span<const T>(a), std::span<const T>(b));
}

/// Ordinary rows, and rows that are zero, constant, huge, tiny or of few values; some have a zero of either sign as
/// their smallest value, or a clip threshold of zero.
std::vector<float> codec_rows(std::size_t count, std::size_t dim) {
  const std::vector<double> random = gaussian(count * dim, 21);
  std::vector<float> rows(random.begin(), random.end());
  for (std::size_t row = 0; row < count; ++row) {
    const std::span<float> x = std::span(rows).subspan(row * dim, dim);
    for (std::size_t i = 0; i < dim; ++i) {
      if (row % 11 == 1) x[i] = 0.0F;
      if (row % 11 == 2) x[i] = -5.0F;
      if (row % 11 == 3) x[i] *= 1e30F;
      if (row % 11 == 4) x[i] *= 1e-30F;
      if (row % 11 == 5) x[i] = std::round(x[i]);
      if (row % 11 == 6) x[i] = round_to_bf16(x[i]);
      if (row % 11 == 7) x[i] = i % 2 == row / 11 % 2 ? 0.0F : -0.0F;
      if (row % 11 == 8) x[i] = i % 3 == 0 ? (i % 2 == row / 11 % 2 ? 0.0F : -0.0F) : std::abs(x[i]);
      if (row % 11 == 9 && i % 5 != row / 11 % 5) x[i] = 0.0F;
    }
  }
  return rows;
}

/// max |A V - V diag(values)| and max |V^T V - I|.
struct Residuals {
  double equation = 0, orthogonality = 0;
};
Residuals residuals(std::span<const double> a, const Eigenpairs& pairs, std::size_t dim) {
  Residuals worst;
  const auto v = [&](std::size_t i, std::size_t j) { return pairs.vectors[i * dim + j]; };
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) {
      double product = 0, dot = 0;
      for (std::size_t k = 0; k < dim; ++k) {
        product += a[i * dim + k] * v(k, j);
        dot += v(k, i) * v(k, j);
      }
      worst.equation = std::max(worst.equation, std::abs(product - v(i, j) * pairs.values[j]));
      worst.orthogonality = std::max(worst.orthogonality, std::abs(dot - (i == j ? 1.0 : 0.0)));
    }
  }
  return worst;
}

}  // namespace

void check_codec(const Pair& on, const Shape& shape, const RowCodec& codec, Precision precision) {
  const std::vector<float> rows =
      codec_rows(static_cast<std::size_t>(shape.tokens), static_cast<std::size_t>(shape.head_dim));
  std::vector<float> expected(rows.size());
  Guarded<float> got(rows.size()), without_codes(rows.size());
  QuantizedRows expected_codes, codes;
  on.expected.quantize(rows, shape.head_dim, codec, precision, expected, &expected_codes);
  on.got.quantize(rows, shape.head_dim, codec, precision, got.get(), &codes);
  on.got.quantize(rows, shape.head_dim, codec, precision, without_codes.get(), nullptr);
  CHECK((got.intact() && without_codes.intact()));
  const double bits = differing<float>(got.get(), expected) + differing<float>(without_codes.get(), expected) +
                      differing(codes.codes, expected_codes.codes) + differing(codes.scale, expected_codes.scale) +
                      differing(codes.zero, expected_codes.zero);
  check_error("quantize, values that differ", shape, bits, 0);
}

void check_coded_rows(const Pair& on, const Shape& shape) {
  const std::vector<float> rows =
      codec_rows(static_cast<std::size_t>(shape.tokens), static_cast<std::size_t>(shape.head_dim));
  std::vector<CodedFormat> formats = *coded_formats(6, shape.head_dim);
  formats.push_back(formats.front());
  for (int& levels : formats.back().levels) levels = std::min(levels, 8);  // no wide class
  formats.push_back(formats.front());
  std::ranges::fill(formats.back().levels, 1);  // nothing is stored
  for (const CodedFormat& format : formats) {
    HistoryCodec codec;
    codec.coded = std::make_shared<const std::vector<CodedFormat>>(1, format);
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      std::vector<float> expected(rows.size());
      Guarded<float> got(rows.size());
      QuantizedRows expected_codes, codes;
      on.expected.quantize(rows, shape.head_dim, codec, precision, expected, &expected_codes);
      on.got.quantize(rows, shape.head_dim, codec, precision, got.get(), &codes);
      CHECK(got.intact());
      CHECK(!codes.codes.empty());
      check_error("coded rows, values that differ", shape, differing<float>(got.get(), expected), 0);
      check_error("coded rows, codes that differ", shape,
                  differing(codes.codes, expected_codes.codes) + differing(codes.scale, expected_codes.scale), 0);
    }
  }
}

void check_rotation(const Pair& on, const Shape& shape) {
  const Tensor x = activations(shape, 6, 22);
  for (const int count : {1, 2, 6}) {
    const MatrixStack matrices = gaussian_matrices(count, shape.head_dim, 23);
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      const bool serving = precision == Precision::kServing;
      std::vector<float> expected(static_cast<std::size_t>(x.size()));
      Guarded<float> got(expected.size());
      on.expected.rotate(heads_view(x, "x"), matrices, precision, expected);
      on.got.rotate(heads_view(x, "x"), matrices, precision, got.get());
      CHECK(got.intact());
      CHECK((!serving || all_bf16(got.get())));
      check_error(serving ? "rotate, serving, units in the last place" : "rotate, units in the last place", shape,
                  largest_ulps(got.get(), expected, serving ? 8 : 24), on.allowed.rotate_ulps);
    }
  }
}

void check_eigenpairs(const Pair& on, const MatrixStack& matrices) {
  const Shape shape{DType::kF64, matrices.dim, matrices.count};
  const std::vector<Eigenpairs> expected = on.expected.eigh(matrices), got = on.got.eigh(matrices);
  REQUIRE(got.size() == expected.size());
  double values = 0, equation = 0, orthogonality = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double scale = std::max(largest_magnitude(expected[i].values), 1e-300);
    const Residuals r = residuals(matrices[static_cast<int>(i)], got[i], static_cast<std::size_t>(matrices.dim));
    CHECK(std::is_sorted(got[i].values.begin(), got[i].values.end()));
    values = std::max(values, largest_difference(got[i].values, expected[i].values) / scale);
    equation = std::max(equation, r.equation / scale);
    orthogonality = std::max(orthogonality, r.orthogonality);
  }
  check_error("eigh, values", shape, values, on.allowed.eigen);
  check_error("eigh, A V - V values", shape, equation, on.allowed.eigen);
  check_error("eigh, V^T V - 1", shape, orthogonality, on.allowed.eigen);
}

namespace {

constexpr int kHeads = 6;

/// Added twice; values are taken where windows hold recent keys alone.
FisherSums fisher_sums(Backend& backend, const QkvView& qkv, std::span<const SequenceRange> sequences,
                       Windows windows) {
  FisherSums sums(qkv.k.num_heads, qkv.k.head_dim);
  if (windows.sink == 0) sums.value = MatrixStack(qkv.v.num_heads, qkv.v.head_dim);
  for (int i = 0; i < 2; ++i) backend.accumulate_fisher_sums(qkv, sequences, windows, sums);
  return sums;
}

}  // namespace

void check_sum(const Pair& on, const std::string& what, const Shape& shape, MatrixStack sums, double tolerance,
               const std::function<void(Backend&, MatrixStack&)>& add) {
  MatrixStack expected(sums.count, sums.dim), got = sums;
  add(on.expected, expected);
  add(on.got, got);
  for (std::size_t i = 0; i < got.data.size(); ++i) got.data[i] -= sums.data[i];
  check_error(what + on.name, shape, relative_error(got, expected), tolerance);
}

void check_grams(const Pair& on, const Shape& shape) {
  const Tensor x = activations(shape, kHeads, 1);
  for (const int count : {kHeads, 2, 1}) {
    check_sum(
        on, "grams", shape, symmetric_matrices(count, shape.head_dim, 77), on.allowed.sums,
        [&](Backend& backend, MatrixStack& grams) { backend.accumulate_grams(std::array{heads_view(x, "x")}, grams); });
  }
}

void check_weighted_grams(const Pair& on, const Shape& shape) {
  const Tensor k = activations(shape, kHeads, 2), v = activations(shape, kHeads, 3);
  // Of any sign, so that some weights are negative and count as zero in the sums.
  const MatrixStack forms = symmetric_matrices(kHeads, shape.head_dim, 4);
  std::vector<std::vector<double>> weights;
  const std::vector<double> start(kHeads, 3.5);
  check_sum(on, "grams, weighted", shape, symmetric_matrices(kHeads, shape.head_dim, 77), on.allowed.sums,
            [&](Backend& backend, MatrixStack& grams) {
              weights.push_back(start);
              backend.accumulate_weighted_grams(std::array{heads_view(k, "k")}, forms, std::array{heads_view(v, "v")},
                                                grams, weights.back());
            });
  // Weights of both signs cancel, so their sum is compared with the largest.
  check_error("weights" + on.name, shape, largest_difference(weights[1], weights[0]) / largest_magnitude(weights[0]),
              1e-12);
}

void check_fisher_sums(const Pair& on, const Shape& shape) {
  const Shape values{shape.dtype, shape.head_dim + 6, shape.tokens};
  const Tensor q = activations(shape, kHeads, 5), k = activations(shape, 2, 6), v = activations(values, 2, 7);
  const QkvView qkv{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")};
  const std::int64_t cut = shape.tokens / 7;
  const std::vector<SequenceRange> sequences{{0, cut}, {cut, cut}, {cut, shape.tokens}};
  for (const Windows windows : {Windows{2, 5}, Windows{0, 1}}) {
    const FisherSums expected = fisher_sums(on.expected, qkv, sequences, windows);
    const FisherSums got = fisher_sums(on.got, qkv, sequences, windows);
    const auto check = [&](const char* what, const std::vector<double>& a, const std::vector<double>& b) {
      check_error(what, shape, largest_difference(a, b) / std::max(largest_magnitude(b), 1e-300), on.allowed.fisher);
    };
    check("fisher, queries", got.query.data, expected.query.data);
    check("fisher, keys", got.key.data, expected.key.data);
    check("fisher, values", got.value.data, expected.value.data);
    check("fisher, sum of keys", got.key_sum, expected.key_sum);
    check("fisher, weight", got.weight, expected.weight);
  }
}

namespace {

double relative(double got, double expected) {
  return expected == 0 ? std::abs(got) : std::abs(got - expected) / std::abs(expected);
}

/// The largest relative difference of a sum.
double largest_error(const AttentionErrors& got, const AttentionErrors& expected) {
  double worst = 0;
  for (const auto member :
       {&AttentionErrors::softmax_kl, &AttentionErrors::output_error, &AttentionErrors::output_norm,
        &AttentionErrors::output_cosine, &AttentionErrors::logit_error, &AttentionErrors::logit_norm,
        &AttentionErrors::needle_mass, &AttentionErrors::needle_kept}) {
    worst = std::max(worst, relative(got.*member, expected.*member));
  }
  return worst;
}

}  // namespace

void check_attend(const Pair& on, const Sequence& s, Precision precision, bool rotated,
                  const std::vector<Windows>& all_windows) {
  const bool serving = precision == Precision::kServing;
  const auto reference = on.expected.hold(s.input(precision, rotated)), held = on.got.hold(s.input(precision, rotated));
  for (const Windows& windows : all_windows) {
    for (const HistoryCodecs& codecs : codecs_for(s)) {
      std::vector<float> expected(s.out_size());
      Guarded<float> got(expected.size());
      reference->attend(codecs, windows, expected);
      held->attend(codecs, windows, got.get());
      CHECK(got.intact());
      CHECK((!serving || rotated || all_bf16(got.get())));
      // An output may fall to the other side of a tie: one bfloat16 unit of the largest is 2^-7 of it at most.
      check_error((serving ? "attend, serving" : "attend") + on.name, s.shape,
                  largest_difference(got.get(), expected) / largest_magnitude(expected),
                  serving ? std::ldexp(1.0, -7) : on.allowed.attend);
    }
  }
}

void check_compare(const Agreement& allowed, const Sequence& s, const std::vector<std::vector<AttentionErrors>>& got,
                   const std::vector<std::vector<AttentionErrors>>& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0, worst_query = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    REQUIRE(got[i].size() == expected[i].size());
    for (std::size_t head = 0; head < got[i].size(); ++head) {
      CHECK(got[i][head].queries == expected[i][head].queries);
      REQUIRE(got[i][head].query_kl.size() == expected[i][head].query_kl.size());
      worst = std::max(worst, largest_error(got[i][head], expected[i][head]));
      worst_query = std::max(worst_query, largest_difference(got[i][head].query_kl, expected[i][head].query_kl));
    }
  }
  check_error("compare", s.shape, worst, allowed.compare);
  check_error("compare, KL of a query", s.shape, worst_query, allowed.compare);
}

void check_compare(const Pair& on, const Sequence& s, Precision precision, const std::vector<Windows>& all_windows) {
  const bool rotated = s.decoded_k.shape.empty();
  const auto reference = on.expected.hold(s.input(precision, rotated)), held = on.got.hold(s.input(precision, rotated));
  for (const Windows& windows : all_windows) {
    const std::vector<HistoryCodecs> codecs = codecs_for(s);
    check_compare(on.allowed, s, held->compare(codecs, windows), reference->compare(codecs, windows));
  }
}

void check_row_errors(const Pair& on, const Sequence& s, bool rotated, Windows windows) {
  const SequenceInput input = s.input(Precision::kServing, rotated);
  const auto reference = on.expected.hold(input), held = on.got.hold(input);
  for (const HistoryCodecs& codecs : codecs_for(s)) {
    const std::vector<RowErrors> expected = reference->row_errors(codecs, windows);
    const std::vector<RowErrors> got = held->row_errors(codecs, windows);
    REQUIRE(got.size() == expected.size());
    double worst = 0;
    for (const auto member :
         {&RowErrors::key_signal, &RowErrors::key_noise, &RowErrors::value_signal, &RowErrors::value_noise}) {
      for (std::size_t h = 0; h < got.size(); ++h) {
        worst = std::max(worst, relative(got[h].*member, expected[h].*member));
      }
    }
    check_error("row_errors" + on.name, s.shape, worst, on.allowed.row_errors);
  }
}

}  // namespace oscar::test
