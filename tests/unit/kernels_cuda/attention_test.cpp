// SPDX-License-Identifier: MIT
// Mixed-precision attention and its errors: the GPU against the CPU, for every kind of group, window and query.
#include "unit/kernels_cuda/samples.hpp"

namespace oscar {
namespace {

using namespace test;

/// A sequence and two stacks of matrices.
struct Sequence {
  Shape shape;
  int heads, kv_heads;
  std::vector<std::int64_t> positions;
  MatrixStack key_rotation, value_rotation;
  Tensor q, k, v;

  Sequence(const Shape& shape_, int heads_, int kv_heads_, std::vector<std::int64_t> positions_)
      : shape(shape_),
        heads(heads_),
        kv_heads(kv_heads_),
        positions(std::move(positions_)),
        key_rotation(gaussian_matrices(kv_heads_, shape_.head_dim, 40)),
        value_rotation(gaussian_matrices(1, shape_.head_dim, 41)) {
    for (double& x : key_rotation.data) x /= std::sqrt(shape.head_dim);
    for (double& x : value_rotation.data) x /= std::sqrt(shape.head_dim);
    Shape queries = shape;
    if (!positions.empty()) queries.tokens = static_cast<std::int64_t>(positions.size());
    q = activations(queries, heads, 42), k = activations(shape, kv_heads, 43), v = activations(shape, kv_heads, 44);
  }
  [[nodiscard]] SequenceInput input(Precision precision, bool rotated) const {
    return {{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")},
            positions,
            rotated ? &key_rotation : nullptr,
            rotated ? &value_rotation : nullptr,
            precision};
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

/// Both sides, one side, none; whole rows and groups, with and without clipping, 4 levels and more.
const std::vector<HistoryCodecs> kCodecs{
    {RowCodec{.clip_ratio = 0.96}, RowCodec{.clip_ratio = 0.92}},
    {RowCodec{}, {}},
    {{}, RowCodec{.group_size = 16}},
    {RowCodec{.levels = 16, .group_size = 16, .clip_ratio = 0.9, .clip_search = ClipSearch::kBisect}, RowCodec{}},
    {}};

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
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      const bool serving = precision == Precision::kServing;
      for (const bool rotated : {true, false}) {
        const auto reference = cpu->hold(s.input(precision, rotated)), held = gpu->hold(s.input(precision, rotated));
        for (const Windows& windows : kWindows) {
          for (const HistoryCodecs& codecs : kCodecs) {
            std::vector<float> expected(static_cast<std::size_t>(s.q.size()));
            Guarded<float> got(expected.size());
            reference->attend(codecs, windows, expected);
            held->attend(codecs, windows, got.get());
            CHECK(got.intact());
            CHECK((!serving || rotated || all_bf16(got.get())));
            // An output may fall to the other side of a tie: one bfloat16 unit of the largest is 2^-7 of it at most.
            check_error(serving ? "attend, serving" : "attend", s.shape,
                        largest_difference(got.get(), expected) / largest_magnitude(expected),
                        serving ? std::ldexp(1.0, -7) : 1e-4);
          }
        }
      }
    }
  }
}

TEST_CASE("compare_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const Sequence& s : sequences()) {
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      const auto reference = cpu->hold(s.input(precision, true)), held = gpu->hold(s.input(precision, true));
      for (const Windows& windows : kWindows) {
        const auto expected = reference->compare(kCodecs, windows);
        const auto got = held->compare(kCodecs, windows);
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
        check_error("compare", s.shape, worst, 1e-6);
        check_error("compare, KL of a query", s.shape, worst_query, 1e-6);
      }
    }
  }
}

TEST_CASE("row_errors_match_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (const Sequence& s : sequences()) {
    for (const bool rotated : {true, false}) {
      const SequenceInput input = s.input(Precision::kServing, rotated);
      const auto reference = cpu->hold(input), held = gpu->hold(input);
      for (const HistoryCodecs& codecs : kCodecs) {
        const RowErrors expected = reference->row_errors(codecs, kWindows[0]);
        const RowErrors got = held->row_errors(codecs, kWindows[0]);
        double worst = 0;
        for (const auto member :
             {&RowErrors::key_signal, &RowErrors::key_noise, &RowErrors::value_signal, &RowErrors::value_noise}) {
          worst = std::max(worst, relative(got.*member, expected.*member));
        }
        check_error("row_errors", s.shape, worst, 1e-9);
      }
    }
  }
}

}  // namespace oscar
