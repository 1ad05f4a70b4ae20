// SPDX-License-Identifier: MIT
// kernels/cpu against kernels/reference, operation by operation: head sizes, grouped queries, windows, odd numbers of
// tokens, groups, levels, and every kind of packed row.
#include <doctest/doctest.h>

#include "kernels/cpu/row_codec.hpp"
#include "kernels/reference/packing.hpp"
#include "kernels/reference/reference_backend.hpp"
#include "unit/kernels/agreement.hpp"

namespace oscar {
namespace {

using namespace test;

struct Backends {
  std::unique_ptr<Backend> reference = reference::make_reference_backend(), cpu = make_cpu_backend();
  [[nodiscard]] Pair pair() const { return {*reference, *cpu, kOfCpu}; }
};

/// Every head size; more tokens than a block of queries has.
std::vector<Shape> small_shapes() {
  return {{DType::kF32, 64, 77},
          {DType::kBF16, 128, 45},
          {DType::kF16, 256, 37},
          {DType::kF32, 80, 1},
          {DType::kF32, 10, 290}};
}

std::vector<Sequence> cpu_sequences() {
  std::vector<Sequence> all;
  for (const Shape& shape : {Shape{DType::kF32, 64, 71}, Shape{DType::kBF16, 128, 45}, Shape{DType::kF16, 256, 37}}) {
    add_sequences(shape, all);
  }
  all.emplace_back(Shape{DType::kBF16, 64, 1}, 6, 1, std::vector<std::int64_t>{});
  all.emplace_back(Shape{DType::kF16, 64, 39}, 12, 2, std::vector<std::int64_t>{5, 38}, 128);
  all.push_back(Sequence({DType::kBF16, 64, 45}, 4, 2, {}).with_history(true));
  all.push_back(Sequence({DType::kF32, 80, 39}, 3, 3, {7, 38}).with_history(false));
  return all;
}

}  // namespace

TEST_CASE("sums over tokens agree with the reference") {
  const Backends on;
  for (const Shape& shape : small_shapes()) {
    check_grams(on.pair(), shape);
    check_weighted_grams(on.pair(), shape);
    check_fisher_sums(on.pair(), shape);
  }
  check_grams(on.pair(), {DType::kF32, 8, 2'500});  // more than a slab
}

TEST_CASE("rotation agrees with the reference") {
  const Backends on;
  for (const Shape& shape : small_shapes()) check_rotation(on.pair(), shape);
}

TEST_CASE("the row codec agrees with the reference to the bit") {
  const Backends on;
  for (const int head_dim : {5, 64, 80, 128, 256}) {
    const Shape shape{DType::kF32, head_dim, 45};
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      for (const ClipSearch search : {ClipSearch::kSort, ClipSearch::kBisect}) {
        for (const double ratio : {0.5, 0.96, 1.0}) {
          check_codec(on.pair(), shape, {.clip_ratio = ratio, .clip_search = search}, precision);
        }
      }
      for (const int group_size : {0, 1, 5, 16, 32, 64}) {
        if (group_size != 0 && head_dim % group_size != 0) continue;
        for (const int levels : {2, 3, 4, 5, 8, 15, 16, 256}) {
          check_codec(on.pair(), shape, {.levels = levels, .group_size = group_size}, precision);
        }
        for (const DType dtype : {DType::kF16, DType::kBF16}) {
          check_codec(on.pair(), shape,
                      {.group_size = group_size, .clip_ratio = 0.9, .grid = Grid::kLloydMax, .scale_dtype = dtype},
                      precision);
        }
      }
    }
  }
  for (const int head_dim : {8, 64, 128}) check_coded_rows(on.pair(), {DType::kF32, head_dim, 45});
}

TEST_CASE("a packed history has the bytes of the reference, and decodes to its rows") {
  for (const Shape& shape : small_shapes()) {
    const Sequence s(shape, 4, 2, {});
    const Tensor k = convert(s.k, DType::kF32);
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    for (const HistoryCodecs& codecs : codecs_for(s)) {
      if (!codecs.key || (codecs.key->group_size > 0 && shape.head_dim % codecs.key->group_size != 0)) continue;
      const cpu::PackedHistory history(k.values<float>(), 2, shape.head_dim, *codecs.key);
      for (int head = 0; head < 2; ++head) {
        const std::size_t size = reference::packed_row_bytes(*codecs.key, head, dim);
        REQUIRE(history.bytes(head).size() == static_cast<std::size_t>(shape.tokens) * size);
        for (std::int64_t t = 0; t < shape.tokens; ++t) {
          std::vector<std::uint8_t> bytes(size);
          std::vector<float> row(dim), expected(dim);
          reference::encode_packed_row(
              *codecs.key, head,
              k.values<float>().subspan((static_cast<std::size_t>(t) * 2 + static_cast<std::size_t>(head)) * dim, dim),
              bytes);
          reference::decode_packed_row(*codecs.key, head, bytes, expected);
          history.decode(t, head, Precision::kExact, row);
          REQUIRE(std::ranges::equal(history.bytes(head).subspan(static_cast<std::size_t>(t) * size, size), bytes));
          REQUIRE(row == expected);
        }
      }
    }
  }
}

TEST_CASE("attention over packed rows agrees with the reference") {
  const Backends on;
  for (const Sequence& s : cpu_sequences()) {
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      check_attend(on.pair(), s, precision, s.decoded_k.shape.empty(), kWindows);
      check_attend(on.pair(), s, precision, false, kSmallWindows);
    }
  }
}

TEST_CASE("attention by score rules agrees with the reference") {
  const Backends on;
  for (Sequence& s : cpu_sequences()) {
    for (const ScoreRule& rule : score_rules(s.heads)) {
      s.rule = rule;
      check_attend(on.pair(), s, Precision::kExact, false, kSmallWindows);
    }
  }
}

TEST_CASE("errors of attention agree with the reference, head by head and query by query") {
  const Backends on;
  double needles = 0;
  for (const Sequence& s : cpu_sequences()) {
    check_compare(on.pair(), s, Precision::kExact, kWindows);
    check_compare(on.pair(), s, Precision::kServing, kSmallWindows);
    const HistoryCodecs first = codecs_for(s).front();
    const auto found = on.cpu->hold(s.input(Precision::kExact))->compare({&first, 1}, kSmallWindows[0]);
    for (const AttentionErrors& errors : found[0]) {
      needles += errors.needle_mass;
    }
  }
  CHECK(needles > 5);  // there are needles to be lost
}

TEST_CASE("errors of rows agree with the reference") {
  const Backends on;
  for (const Sequence& s : cpu_sequences()) {
    for (const Windows windows : {kWindows[0], kWindows[1]}) {
      check_row_errors(on.pair(), s, s.decoded_k.shape.empty(), windows);
      check_row_errors(on.pair(), s, false, windows);
    }
  }
}

TEST_CASE("eigenproblems agree with the reference") {
  const Backends on;
  for (const int dim : {1, 2, 33, 64}) check_eigenpairs(on.pair(), eigenproblems(dim));
}

}  // namespace oscar
