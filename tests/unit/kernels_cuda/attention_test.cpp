// SPDX-License-Identifier: MIT
// Mixed-precision attention and its errors: the GPU against the CPU, for every kind of group, window and query.
#include "unit/kernels_cuda/samples.hpp"

namespace oscar {
namespace {

using namespace test;

/// A sequence with random exact and mixed rows, of which nothing but the shapes agrees.
struct Sequence {
  Shape shape;
  int heads, kv_heads;
  std::vector<std::int64_t> positions;
  MatrixStack back;
  Tensor q, k, v, mixed_q, window_k, history_k, window_v, history_v;

  Sequence(const Shape& shape_, int heads_, int kv_heads_, std::vector<std::int64_t> positions_)
      : shape(shape_),
        heads(heads_),
        kv_heads(kv_heads_),
        positions(std::move(positions_)),
        back(gaussian_matrices(kv_heads_, shape_.head_dim, 41)) {
    Shape queries = shape;
    if (!positions.empty()) queries.tokens = static_cast<std::int64_t>(positions.size());
    const Shape rows{DType::kF32, shape.head_dim, shape.tokens};
    q = activations(queries, heads, 42), k = activations(shape, kv_heads, 43), v = activations(shape, kv_heads, 44);
    queries.dtype = DType::kF32;
    mixed_q = activations(queries, heads, 45);
    window_k = activations(rows, kv_heads, 46), history_k = activations(rows, kv_heads, 47);
    window_v = activations(rows, kv_heads, 48), history_v = activations(rows, kv_heads, 49);
  }
  [[nodiscard]] QkvView exact() const { return {heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")}; }
  [[nodiscard]] MixedAttention mixed(Windows windows, Precision precision, bool restore) const {
    return {.q = heads_view(mixed_q, "q"),
            .window_k = heads_view(window_k, "k"),
            .history_k = heads_view(history_k, "k"),
            .window_v = heads_view(window_v, "v"),
            .history_v = heads_view(history_v, "v"),
            .query_positions = positions,
            .windows = windows,
            .native_from_rotated = restore ? &back : nullptr,
            .precision = precision};
  }
};

std::vector<Sequence> sequences() {
  std::vector<Sequence> all;
  for (const Shape& shape : shapes()) {
    const std::int64_t last = shape.tokens - 1;
    all.emplace_back(shape, 6, 2, std::vector<std::int64_t>{});
    all.emplace_back(shape, 5, 1, std::vector<std::int64_t>{0, last / 3, last / 3, last / 2, last});
    all.emplace_back(shape, 3, 3, std::vector<std::int64_t>{last});
  }
  all.emplace_back(Shape{DType::kBF16, 64, 1301}, 4, 2, std::vector<std::int64_t>{});  // several blocks of queries
  return all;
}

constexpr Windows kWindows[] = {{4, 16}, {0, 0}, {0, 40}, {10, 0}, {64, 256}};

double relative(double got, double expected) {
  return expected == 0 ? std::abs(got) : std::abs(got - expected) / std::abs(expected);
}

/// The largest relative difference of a sum.
double largest_error(const AttentionErrors& got, const AttentionErrors& expected) {
  double worst = 0;
  for (const auto member : {&AttentionErrors::softmax_kl, &AttentionErrors::output_error, &AttentionErrors::output_norm,
                            &AttentionErrors::logit_error, &AttentionErrors::logit_norm}) {
    worst = std::max(worst, relative(got.*member, expected.*member));
  }
  return worst;
}

}  // namespace

TEST_CASE("attend_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const Sequence& s : sequences()) {
    for (const Windows& windows : kWindows) {
      for (const Precision precision : {Precision::kExact, Precision::kServing}) {
        const bool serving = precision == Precision::kServing;
        for (const bool restore : {true, false}) {
          const MixedAttention mixed = s.mixed(windows, precision, restore);
          std::vector<float> expected(static_cast<std::size_t>(s.mixed_q.size()));
          Guarded<float> got(expected.size());
          cpu->attend(mixed, expected);
          gpu->attend(mixed, got.get());
          CHECK(got.intact());
          CHECK((!serving || restore || all_bf16(got.get())));
          // An output may fall to the other side of a tie: one bfloat16 unit of the largest is 2^-7 of it at most.
          check_error(serving ? "attend, serving" : "attend", s.shape,
                      largest_difference(got.get(), expected) / largest_magnitude(expected),
                      serving ? std::ldexp(1.0, -7) : 1e-4);
        }
      }
    }
  }
}

TEST_CASE("compare_attention_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const Sequence& s : sequences()) {
    for (const Windows& windows : kWindows) {
      for (const Precision precision : {Precision::kExact, Precision::kServing}) {
        const MixedAttention mixed = s.mixed(windows, precision, true);
        const std::vector<AttentionErrors> expected = cpu->compare_attention(s.exact(), mixed);
        const std::vector<AttentionErrors> got = gpu->compare_attention(s.exact(), mixed);
        REQUIRE(got.size() == expected.size());
        double worst = 0, worst_query = 0;
        for (std::size_t head = 0; head < got.size(); ++head) {
          CHECK(got[head].queries == expected[head].queries);
          REQUIRE(got[head].query_kl.size() == expected[head].query_kl.size());
          worst = std::max(worst, largest_error(got[head], expected[head]));
          worst_query = std::max(worst_query, largest_difference(got[head].query_kl, expected[head].query_kl));
        }
        check_error("compare_attention", s.shape, worst, 1e-6);
        check_error("compare_attention, KL of a query", s.shape, worst_query, 1e-6);
      }
    }
  }
}

}  // namespace oscar
