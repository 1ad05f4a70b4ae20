// SPDX-License-Identifier: MIT
// Every backend against the one that says what is right, operation by operation. Compiled twice: for the CPU, against
// kernels/reference; and with OSCAR_TEST_CUDA for the GPU, against kernels/reference on small cases, whose names start
// with "small:" and which compute-sanitizer watches too, and against kernels/cpu on all. Sums of a GPU are checked in
// fp64 and in the fp32 products of GPUs that are slow in fp64.
#include "conformance/operations.hpp"
#include "kernels/cpu/row_codec.hpp"
#include "kernels/reference/reference_backend.hpp"
#include "kernels/reference/row_codec.hpp"
#ifdef OSCAR_TEST_CUDA
#include "unit/kernels_cuda/gpu.hpp"
#endif

namespace oscar {
namespace {

using namespace test;
using Operation = void (*)(const Pair&);

#ifdef OSCAR_TEST_CUDA
void conforms(std::unique_ptr<Backend> expected, Tier tier, bool is_sum, Operation operation) {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  if (!is_sum) return operation({*expected, *gpu, tier});
  Status silent;
  operation({*expected, *gpu_with("OSCAR_CUDA_PRODUCTS", "fp64", silent), tier});
  operation({*expected, *gpu_with("OSCAR_CUDA_PRODUCTS", "fp32", silent), tier, "fp32"});
}

#define OPERATION(name, is_sum, operation)                                          \
  TEST_CASE("small: " name ", against the reference") {                             \
    conforms(reference::make_reference_backend(), Tier::kSmall, is_sum, operation); \
  }                                                                                 \
  TEST_CASE(name ", against the CPU") { conforms(make_cpu_backend(), Tier::kLarge, is_sum, operation); }
#else
#define OPERATION(name, is_sum, operation)                                                        \
  TEST_CASE(name ", against the reference") {                                                     \
    operation({*reference::make_reference_backend(), *make_cpu_backend(), Tier::kMedium, "CPU"}); \
  }
#endif

}  // namespace

OPERATION("sums over tokens", true, grams)
OPERATION("weighted sums over tokens", true, weighted_grams)
OPERATION("sums for the Fisher metric", false, fisher_sums)
OPERATION("quantized rows", false, quantize)
OPERATION("quantized rows of the coded cache", false, quantize_coded_rows)
OPERATION("attention", false, attend)
OPERATION("attention by score rules", false, attend_by_score_rules)
OPERATION("errors of attention", false, compare)
OPERATION("errors of rows", false, row_errors)
OPERATION("eigenproblems", false, eigenpairs)

#ifdef OSCAR_TEST_CUDA
TEST_CASE("fp32 products of a whole layer are close to fp64") {
  conforms(make_cpu_backend(), Tier::kLarge, true, grams_of_a_whole_layer);
}

TEST_CASE("errors of attention match the CPU where candidates, heads and queries need several passes") {
  conforms(make_cpu_backend(), Tier::kLarge, false, [](const Pair& on) {
    std::vector<std::int64_t> positions;
    for (std::int64_t p = 511; p < 8192; p += 512) positions.insert(positions.end(), {p - 1, p, p});
    const Sequence s({DType::kBF16, 128, 8192}, 6, 2, positions);
    std::vector<HistoryCodecs> candidates;
    for (int i = 0; i < 12; ++i) {
      candidates.push_back({RowCodec{.clip_ratio = 1 - 0.03 * i}, RowCodec{.clip_ratio = i < 6 ? 0.96 : 0.9}});
    }
    candidates.push_back({HistoryCodec{{}, {0.96, 0.8}}, HistoryCodec{{}, {0.9, 1}}});
    candidates.push_back({coded(2, 128), coded(2, 128)});
    compare(on, s, Precision::kServing, candidates, {64, 256});
  });
}
#else
TEST_CASE("a packed history has the bytes of the reference, and decodes to its rows") {
  for (const Shape& shape : shapes_of("shapes", Tier::kMedium)) {
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
#endif

}  // namespace oscar
