// SPDX-License-Identifier: MIT
// The reference by hand: numbers that a reader can check.
#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "kernels/reference/attention.hpp"
#include "kernels/reference/reference_backend.hpp"
#include "kernels/reference/row_codec.hpp"

namespace oscar::reference {

namespace {

using Bytes = std::vector<std::uint8_t>;

}  // namespace

TEST_CASE("golden bytes: a quarter of the row goes into each pair of bits") {
  const std::vector<std::uint8_t> codes{0, 1, 2, 3, 3, 2, 1, 0};
  std::vector<std::uint8_t> bytes(2);
  pack_codes(codes, 4, bytes);
  CHECK(bytes == std::vector<std::uint8_t>{0 | 2 << 2 | 3 << 4 | 1 << 6, 1 | 3 << 2 | 2 << 4 | 0 << 6});
}

TEST_CASE("unpacking gives back every code") {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>((i * i + i / 7) % 4);
  std::vector<std::uint8_t> bytes(64);
  std::vector<std::uint8_t> again(256);
  pack_codes(codes, 4, bytes);
  unpack_codes(bytes, 4, again);
  CHECK(again == codes);
}

TEST_CASE("codes of other levels are a byte each; codes beyond their levels, and spans that do not fit, are refused") {
  const Bytes codes{4, 3, 2, 1, 0, 4, 3};
  Bytes bytes(code_bytes(5, codes.size())), again(codes.size());
  pack_codes(codes, 5, bytes);
  CHECK(bytes == codes);
  unpack_codes(bytes, 5, again);
  CHECK(again == codes);
  CHECK(code_bytes(4, 128) == 32);
  CHECK(code_bytes(4, 6) == 6);  // 4 does not divide it
  CHECK_THROWS_AS(pack_codes(codes, 4, bytes), std::logic_error);
  CHECK_THROWS_AS(pack_codes(codes, 5, std::span(bytes).first(3)), std::logic_error);
}

namespace {

using Bytes = std::vector<std::uint8_t>;

const float kLog3 = std::log(3.0F);

doctest::Approx near(double x) { return doctest::Approx(x).epsilon(1e-6); }

Bytes packed(const HistoryCodec& codec, const std::vector<float>& row) {
  Bytes bytes(packed_row_bytes(codec, 0, row.size()));
  encode_packed_row(codec, 0, row, bytes);
  return bytes;
}

}  // namespace

TEST_CASE("golden bytes: packed rows are codes, then scale and zero of each group") {
  const std::vector<float> row{-1.0F, 0.0F, 0.4F, 2.0F};  // codes 0, 1, 1, 3; scale and zero are 1
  CHECK(packed(RowCodec{}, row) == Bytes{0 | 1 << 2 | 1 << 4 | 3 << 6, 0, 0, 0x80, 0x3F, 0, 0, 0x80, 0x3F});
  CHECK(packed(RowCodec{.scale_dtype = DType::kF16}, row) == Bytes{0b11010100, 0x00, 0x3C, 0x00, 0x3C});
  CHECK(packed(RowCodec{.scale_dtype = DType::kBF16}, row) == Bytes{0b11010100, 0x80, 0x3F, 0x80, 0x3F});
  // Codes 0, 3 in each of two groups of 2, with scales 1 and 10.
  CHECK(packed(RowCodec{.group_size = 2, .scale_dtype = DType::kF16}, {0.0F, 3.0F, 0.0F, 30.0F}) ==
        Bytes{3 << 2 | 3 << 6, 0x00, 0x3C, 0x00, 0x80, 0x00, 0x49, 0x00, 0x80});
  CHECK(packed(RowCodec{.levels = 3, .scale_dtype = DType::kF16}, {0.0F, 2.0F, 2.0F}) ==
        Bytes{0, 2, 2, 0x00, 0x3C, 0x00, 0x80});
  std::vector<float> decoded(4);
  decode_packed_row(RowCodec{}, 0, packed(RowCodec{}, row), decoded);
  CHECK(decoded == std::vector<float>{-1.0F, 0.0F, 0.0F, 2.0F});
}

TEST_CASE("attention by hand: shares of a softmax, with each key as its window or the history has it") {
  // One channel. As stored, keys weigh 1, 3, 1; the history has 1, 1, 1.
  const CacheRows keys{1, {0, kLog3, 0}, {0, 0, 0}}, values{1, {5, 10, 20}, {-5, 15, -20}};
  const Query query{{1.0}, 2, 0};
  CHECK(attend_exactly(query, keys, values).output[0] == near(1.0 / 5 * 5 + 3.0 / 5 * 10 + 1.0 / 5 * 20));
  const Attention mixed = attend(query, keys, values, {1, 1});  // key 1 is of the history
  CHECK(mixed.probabilities[1] == near(1.0 / 3));
  CHECK(mixed.output[0] == near((5.0 + 15 + 20) / 3));
  CHECK(attend({{1.0}, 1, 0}, keys, values, {0, 0}).output[0] == near((-5.0 + 15) / 2));
  const ScoreRule reach{0, 2, {}}, sink{0, 0, {kLog3}}, cap{1, 0, {}};
  CHECK(attend(query, keys, values, {3, 0}, &reach).output[0] == near(3.0 / 4 * 10 + 1.0 / 4 * 20));
  CHECK(attend(query, keys, values, {3, 0}, &sink).output[0] == near((5.0 + 3 * 10 + 20) / 8));
  const double capped = std::exp(std::tanh(std::log(3.0)));
  CHECK(attend(query, keys, values, {3, 0}, &cap).probabilities[1] == near(capped / (capped + 2)));
}

TEST_CASE("errors of attention by hand") {
  const Attention exact{{0, std::log(3.0)}, {0.25, 0.75}, {3, 4}}, mixed{{0, 0}, {0.5, 0.5}, {0, 5}};
  AttentionErrors errors;
  add_errors(exact, mixed, {0, 0}, errors);
  CHECK(errors.softmax_kl == near(0.25 * std::log(0.5) + 0.75 * std::log(1.5)));
  CHECK(errors.logit_error == near(std::pow(std::log(3.0), 2) / 2));  // 0 and -log 3, around their mean
  CHECK(errors.logit_norm == near(std::pow(std::log(3.0), 2) / 2));
  CHECK(errors.output_error == near(9 + 1));
  CHECK(errors.output_norm == near(25));
  CHECK(errors.output_cosine == near(20.0 / 25));
  CHECK(errors.needle_mass == near(1));
  CHECK(errors.needle_kept == near(0.25 + 0.5));
  CHECK(errors.queries == 1);
  add_errors(exact, mixed, {0, 1}, errors);  // key 1 is in the window
  CHECK(errors.needle_mass == near(1 + 0.25));
  add_errors(exact, {{0, NAN}, {NAN, NAN}, {NAN, NAN}}, {0, 0}, errors);
  CHECK(std::isnan(errors.needle_kept));
  CHECK(std::isnan(errors.softmax_kl));
}

TEST_CASE("moments by hand") {
  const std::vector<float> x{1, 2, 3, 4}, q{9, 1}, k{0, kLog3}, v{4, 8};
  MatrixStack grams(1, 2);
  accumulate_grams(heads_view(x, 2, 1, 2), grams);
  CHECK(grams.data == std::vector<double>{10, 14, 14, 20});
  MatrixStack form(1, 2), weighted(1, 2);
  form.data = {1, 0, 0, -1};  // weights 1 - 4 = -3 and 9 - 16 = -7: nothing is added; then their negatives
  std::vector<double> weights(1);
  accumulate_weighted_grams(heads_view(x, 2, 1, 2), form, heads_view(x, 2, 1, 2), weighted, weights);
  CHECK(weighted.data == std::vector<double>(4));
  CHECK(weights[0] == -10);
  form.data = {-1, 0, 0, 1};
  accumulate_weighted_grams(heads_view(x, 2, 1, 2), form, heads_view(x, 2, 1, 2), weighted, weights);
  CHECK(weighted.data == std::vector<double>{3 * 1 + 7 * 9, 3 * 2 + 7 * 12, 3 * 2 + 7 * 12, 3 * 4 + 7 * 16});
  CHECK(weights[0] == 0);
  // Query 1 gives 1/4 and 3/4 to keys 0 and 1; key 0 alone is its history.
  const QkvView qkv{heads_view(q, 2, 1, 1), heads_view(k, 2, 1, 1), heads_view(v, 2, 1, 1)};
  const SequenceRange whole{0, 2};
  FisherSums fisher(1, 1);
  fisher.value = MatrixStack(1, 1);
  accumulate_fisher_sums(qkv, {&whole, 1}, {0, 1}, fisher);
  CHECK(fisher.query.data[0] == near(3.0 / 16));
  CHECK(fisher.key.data[0] == 0);
  CHECK(fisher.weight[0] == near(3.0 / 16));
  CHECK(fisher.value.data[0] == near(1.0 / 16 * 4 * 4));
}

TEST_CASE("rows are stored turned, without their mean, and rounded as servers round") {
  const std::vector<float> x{1, 2};
  MatrixStack quarter_turn(1, 2);
  quarter_turn.data = {0, 1, -1, 0};
  CHECK(stored_rows(heads_view(x, 1, 1, 2), &quarter_turn, {}, Precision::kExact) == std::vector<float>{-2, 1});
  const std::vector<double> mean{1, 1};
  CHECK(stored_rows(heads_view(x, 1, 1, 2), &quarter_turn, mean, Precision::kExact) == std::vector<float>{-1, 0});
  const std::vector<float> fine{1.001F, 1.01F};
  CHECK(stored_rows(heads_view(fine, 1, 1, 2), nullptr, {}, Precision::kServing) ==
        std::vector<float>{1.0F, 1.0078125F});
}

TEST_CASE("eigenvalues by hand") {
  const Eigenpairs pairs = eigh(std::vector<double>{2, 1, 1, 2}, 2);
  CHECK(pairs.values[0] == near(1));
  CHECK(pairs.values[1] == near(3));
  CHECK(std::abs(pairs.vectors[1]) == near(std::sqrt(0.5)));
  CHECK(pairs.vectors[1] == near(pairs.vectors[3]));
}

}  // namespace oscar::reference
