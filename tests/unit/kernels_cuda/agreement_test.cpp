// SPDX-License-Identifier: MIT
// kernels/cuda operation by operation: small shapes against kernels/reference ("small:" cases, which compute-sanitizer
// watches too), large ones, where it would take too long, against kernels/cpu, which is held to it elsewhere. Sums are
// checked in fp64 and in the fp32 products of GPUs that are slow in fp64.
#include <array>

#include "kernels/reference/reference_backend.hpp"
#include "unit/kernels_cuda/samples.hpp"

namespace oscar {
namespace {

using namespace test;
using Check = std::function<void(const Pair&)>;

/// Skips without a GPU. of_each_kind: with a backend of each kind of products, and the errors that kernels/README.md
/// allows it.
void compare_with(std::unique_ptr<Backend> expected, bool of_each_kind, const Check& check) {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  if (!of_each_kind) return check({*expected, *gpu, kOfGpu});
  Status silent;
  check({*expected, *gpu_with("OSCAR_CUDA_PRODUCTS", "fp64", silent), kOfGpu});
  check({*expected, *gpu_with("OSCAR_CUDA_PRODUCTS", "fp32", silent), kOfFp32Products, ", fp32"});
}
void against_reference(const Check& check) { compare_with(reference::make_reference_backend(), false, check); }
void against_cpu(const Check& check) { compare_with(make_cpu_backend(), false, check); }
void sums_against_reference(const Check& check) { compare_with(reference::make_reference_backend(), true, check); }
void sums_against_cpu(const Check& check) { compare_with(make_cpu_backend(), true, check); }

const std::vector<Shape> kFewTokens{{DType::kBF16, 128, 37}, {DType::kF16, 80, 1}, {DType::kF32, 10, 70}};

/// shapes(), and one that takes several chunks or tiles.
std::vector<Shape> shapes_and(const Shape& large) {
  std::vector<Shape> all = shapes();
  all.push_back(large);
  return all;
}

std::vector<Sequence> sequences() {
  std::vector<Sequence> all;
  for (const Shape& shape : shapes()) add_sequences(shape, all);
  all.emplace_back(Shape{DType::kBF16, 64, 1301}, 4, 2, std::vector<std::int64_t>{});
  all.emplace_back(Shape{DType::kBF16, 128, 437}, 12, 2, std::vector<std::int64_t>{});
  all.emplace_back(Shape{DType::kF32, 128, 301}, 24, 2, std::vector<std::int64_t>{31, 300});
  all.emplace_back(Shape{DType::kF16, 192, 333}, 4, 2, std::vector<std::int64_t>{}, 128);
  all.emplace_back(Shape{DType::kBF16, 72, 150}, 4, 4, std::vector<std::int64_t>{}, 256);
  return all;
}

/// Small enough for compute-sanitizer, with a shape for each kernel variant.
std::vector<Sequence> small_sequences() {
  std::vector<Sequence> all;
  for (const int dim : {64, 80, 128, 192, 256})
    all.emplace_back(Shape{DType::kBF16, dim, 43}, 4, 2, std::vector<std::int64_t>{});
  add_sequences({DType::kF32, 72, 70}, all);
  all.push_back(Sequence({DType::kBF16, 64, 45}, 4, 2, {}).with_history(true));
  all.push_back(Sequence({DType::kF32, 80, 39}, 3, 3, {7, 38}).with_history(false));
  all.emplace_back(Shape{DType::kF16, 64, 37}, 12, 1, std::vector<std::int64_t>{5, 36}, 96);
  all.emplace_back(Shape{DType::kBF16, 64, 1}, 6, 1, std::vector<std::int64_t>{});
  return all;
}

}  // namespace

TEST_CASE("small: sums over tokens match the reference") {
  sums_against_reference([](const Pair& on) {
    for (const Shape& shape : kFewTokens) {
      check_grams(on, shape);
      check_weighted_grams(on, shape);
    }
  });
}

TEST_CASE("small: sums for the Fisher metric match the reference") {
  against_reference([](const Pair& on) {
    for (const Shape& shape : kFewTokens) check_fisher_sums(on, shape);
  });
}

TEST_CASE("sums over tokens match the CPU") {
  sums_against_cpu([](const Pair& on) {
    for (const Shape& shape : shapes_and({DType::kBF16, 256, 12'001})) check_grams(on, shape);
    for (const Shape& shape : shapes_and({DType::kF16, 192, 8'001})) check_weighted_grams(on, shape);
  });
}

TEST_CASE("sums for the Fisher metric match the CPU") {
  against_cpu([](const Pair& on) {
    for (const Shape& shape : shapes_and({DType::kF16, 64, 2501})) check_fisher_sums(on, shape);
  });
}

TEST_CASE("fp32 products of a whole layer are close to fp64") {
  sums_against_cpu([](const Pair& on) {
    const Shape shape{DType::kBF16, 64, 30'001};
    const Tensor x = activations(shape, 4, 11);
    check_sum(on, "grams, one layer", shape, MatrixStack(1, 64), 1e-8, [&](Backend& backend, MatrixStack& grams) {
      backend.accumulate_grams(std::array{heads_view(x, "x")}, grams);
    });
  });
}

TEST_CASE("small: sums over several parts are those of the whole") {
  against_reference([](const Pair& on) {
    const Shape shape{DType::kBF16, 64, 301};
    const Tensor k = activations(shape, 6, 31), v = activations(shape, 6, 32);
    const auto parts = [](const Tensor& x) {
      const HeadsView whole = heads_view(x, "x");
      return std::array{whole.tokens(0, 1), whole.tokens(1, 200), whole.tokens(200, whole.num_tokens)};
    };
    const MatrixStack forms = symmetric_matrices(6, shape.head_dim, 4);
    MatrixStack plain(2, shape.head_dim), weighted(6, shape.head_dim), expected_plain = plain,
                                                                       expected_weighted = weighted;
    std::vector<double> weights(6), expected_weights(6);
    on.expected.accumulate_grams(std::array{heads_view(k, "k")}, expected_plain);
    on.got.accumulate_grams(parts(k), plain);
    on.expected.accumulate_weighted_grams(std::array{heads_view(k, "k")}, forms, std::array{heads_view(v, "v")},
                                          expected_weighted, expected_weights);
    on.got.accumulate_weighted_grams(parts(k), forms, parts(v), weighted, weights);
    check_error("grams of parts", shape, relative_error(plain, expected_plain), 1e-12);
    check_error("weighted grams of parts", shape, relative_error(weighted, expected_weighted), 1e-12);
    check_error("weights of parts", shape,
                largest_difference(weights, expected_weights) / largest_magnitude(expected_weights), 1e-12);
  });
}

TEST_CASE("small: rotated rows match the reference") {
  against_reference([](const Pair& on) {
    for (const int head_dim : {64, 80}) check_rotation(on, {DType::kBF16, head_dim, 37});
  });
}

TEST_CASE("rotated rows match the CPU") {
  against_cpu([](const Pair& on) {
    for (const Shape& shape : shapes_and({DType::kF32, 256, 5001})) check_rotation(on, shape);
  });
}

TEST_CASE("small: rows of the coded cache match the reference's to the bit") {
  against_reference([](const Pair& on) {
    for (const int dim : {8, 64, 72, 80, 112, 128, 192, 256, 576}) check_coded_rows(on, {DType::kF32, dim, 67});
  });
}

TEST_CASE("small: quantized rows match the reference") {
  against_reference([](const Pair& on) {
    for (const int head_dim : {64, 80, 112, 256, 576}) {
      const Shape shape{DType::kF32, head_dim, 67};
      check_codec(on, shape, {.clip_ratio = 0.5}, Precision::kServing);
      check_codec(on, shape, {.group_size = 16, .clip_ratio = 0.96, .clip_search = ClipSearch::kBisect},
                  Precision::kExact);
      check_codec(on, shape, {.clip_ratio = 0.9, .grid = Grid::kLloydMax, .scale_dtype = DType::kF16},
                  Precision::kServing);
    }
  });
}

TEST_CASE("quantized rows match the CPU") {
  against_cpu([](const Pair& on) {
    std::vector<Shape> all;
    for (const int head_dim : {5, 64, 80, 96, 112, 128, 192, 256, 576, 1024})
      all.push_back({DType::kF32, head_dim, 1003});
    all.push_back({DType::kF32, 64, 65555});  // more rows than go to the GPU at a time
    for (const Shape& shape : all) {
      for (const Precision precision : {Precision::kExact, Precision::kServing}) {
        for (const ClipSearch search : {ClipSearch::kSort, ClipSearch::kBisect}) {
          for (const double ratio : {0.0, 0.5, 0.96, 1.0}) {
            check_codec(on, shape, {.clip_ratio = ratio, .clip_search = search}, precision);
          }
        }
        for (const int group_size : {16, 32, 64, 5}) {
          if (shape.head_dim % group_size != 0) continue;
          check_codec(on, shape, {.levels = 16, .group_size = group_size, .clip_ratio = 0.9}, precision);
        }
        check_codec(on, shape, {.levels = 256, .group_size = 1}, precision);
      }
    }
  });
}

TEST_CASE("rows quantized on every grid match the CPU") {
  against_cpu([](const Pair& on) {
    for (const int dim : {5, 64, 80, 96, 128, 256, 576, 1024}) {
      const Shape shape{DType::kF32, dim, 503};
      for (int levels = 2; levels <= 16; ++levels) {
        check_codec(on, shape, {.levels = levels, .clip_ratio = 0.9},
                    levels % 2 == 0 ? Precision::kExact : Precision::kServing);
      }
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        const Precision precision = dtype == DType::kF16 ? Precision::kServing : Precision::kExact;
        for (const int group : {0, 16, 32, 48, 64, 5, 1}) {
          if (group != 0 && dim % group != 0) continue;
          for (const double ratio : {0.0, 0.5, 0.96}) {
            check_codec(on, shape, {.group_size = group, .clip_ratio = ratio, .scale_dtype = dtype}, precision);
            check_codec(on, shape,
                        {.group_size = group, .clip_ratio = ratio, .grid = Grid::kLloydMax, .scale_dtype = dtype},
                        precision);
          }
        }
      }
    }
  });
}

TEST_CASE("small: attention matches the reference") {
  against_reference([](const Pair& on) {
    bool serving = false;  // in turn: racecheck is slow
    for (const Sequence& s : small_sequences()) {
      serving = !serving;
      check_attend(on, s, serving ? Precision::kServing : Precision::kExact, serving, {kSmallWindows[serving ? 0 : 1]});
    }
  });
}

TEST_CASE("small: attention by score rules matches the reference") {
  against_reference([](const Pair& on) {
    for (Sequence& s : small_sequences()) {
      for (const ScoreRule& rule : score_rules(s.heads)) {
        s.rule = rule;
        check_attend(on, s, Precision::kExact, s.decoded_k.shape.empty(), kSmallWindows);
      }
    }
  });
}

TEST_CASE("small: errors of attention and of rows match the reference") {
  against_reference([](const Pair& on) {
    for (const Sequence& s : small_sequences()) {
      check_compare(on, s, Precision::kServing, kSmallWindows);
      check_row_errors(on, s, s.decoded_k.shape.empty(), kSmallWindows[0]);
    }
  });
}

TEST_CASE("attention and its errors match the CPU") {
  against_cpu([](const Pair& on) {
    for (const Sequence& s : sequences()) {
      for (const Precision precision : {Precision::kExact, Precision::kServing}) {
        for (const bool rotated : {true, false}) check_attend(on, s, precision, rotated, kWindows);
        check_compare(on, s, precision, kWindows);
      }
      for (const bool rotated : {true, false}) check_row_errors(on, s, rotated, kWindows[0]);
    }
  });
}

TEST_CASE("errors of attention match the CPU where candidates, heads and queries need several passes") {
  against_cpu([](const Pair& on) {
    std::vector<std::int64_t> positions;
    for (std::int64_t p = 511; p < 8192; p += 512) positions.insert(positions.end(), {p - 1, p, p});
    const Sequence s({DType::kBF16, 128, 8192}, 6, 2, positions);
    std::vector<HistoryCodecs> candidates;
    for (int i = 0; i < 12; ++i) {
      candidates.push_back({RowCodec{.clip_ratio = 1 - 0.03 * i}, RowCodec{.clip_ratio = i < 6 ? 0.96 : 0.9}});
    }
    candidates.push_back({HistoryCodec{{}, {0.96, 0.8}}, HistoryCodec{{}, {0.9, 1}}});
    candidates.push_back({coded(2, 128), coded(2, 128)});
    const SequenceInput input = s.input(Precision::kServing);
    check_compare(kOfGpu, s, on.got.hold(input)->compare(candidates, {64, 256}),
                  on.expected.hold(input)->compare(candidates, {64, 256}));
  });
}

TEST_CASE("small: eigenproblems match the reference") {
  against_reference([](const Pair& on) { check_eigenpairs(on, eigenproblems(16)); });
}

TEST_CASE("eigenproblems match the CPU") {
  against_cpu([](const Pair& on) {
    for (const int dim : {1, 2, 33, 64, 80, 96, 112, 128, 192, 256}) check_eigenpairs(on, eigenproblems(dim));
  });
}

}  // namespace oscar
