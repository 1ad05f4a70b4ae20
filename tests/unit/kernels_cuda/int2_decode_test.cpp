// SPDX-License-Identifier: MIT
// Decode attention over INT2 pages against fp64 on the CPU.
#include "unit/kernels_cuda/decode_case.hpp"

namespace oscar {
namespace {

using namespace test;

void check_shape(const DecodeShape& s, unsigned seed) { check_decode<Int2DecodeCase>("int2_decode", s, seed, 1e-3); }

const std::vector<oscar_dtype> kParamTypes{OSCAR_FLOAT32, OSCAR_FLOAT16, OSCAR_BFLOAT16};

}  // namespace

TEST_CASE("int2_decode_matches_cpu, every head size, group size and type of parameters") {
  if (gpu_or_skip() == nullptr) return;
  unsigned seed = 100;
  for (const int dim : {64, 128, 256}) {
    for (const int group : {dim, 64, 32}) {
      for (const oscar_dtype params : kParamTypes) {
        const float peak = seed % 3 == 0 ? 0.2F : seed % 3 == 1 ? 1.0F : 8.0F;
        check_shape({.q_heads = 4,
                     .kv_heads = 1,
                     .dim = dim,
                     .group = group,
                     .params = params,
                     .peak = peak,
                     .lengths = {0, 1, 33, 700, 517},
                     .windows = {1, 0, 64, 320, 129}},
                    seed++);
      }
    }
  }
}

TEST_CASE("int2_decode_matches_cpu, any number of query heads") {
  if (gpu_or_skip() == nullptr) return;
  for (int heads = 1; heads <= 16; ++heads) {
    for (const int dim : {64, 128, 256}) {
      check_shape({.q_heads = 2 * heads,
                   .kv_heads = 2,
                   .dim = dim,
                   .group = dim == 128 ? 64 : dim,
                   .params = kParamTypes[static_cast<std::size_t>(heads % 3)],
                   .lengths = {131},
                   .windows = {19}},
                  static_cast<unsigned>(200 + heads));
    }
  }
}

TEST_CASE("int2_decode_matches_cpu, any page size") {
  if (gpu_or_skip() == nullptr) return;
  for (int page = 1; page <= 256; page *= 2) {
    for (const int seed : {300, 301}) {
      check_shape(
          {.page_size = page, .window_page_size = 256 / page, .lengths = {1500, 64, 255}, .windows = {320, 5, 0}},
          static_cast<unsigned>(seed));
    }
  }
}

TEST_CASE("int2_decode_matches_cpu, long sequences") {
  if (gpu_or_skip() == nullptr) return;
  check_shape(
      {.q_heads = 1, .kv_heads = 1, .dim = 64, .group = 64, .page_size = 64, .lengths = {140001}, .windows = {1500}},
      400);
  check_shape({.q_heads = 2, .kv_heads = 1, .peak = 6, .lengths = {30011, 9}, .windows = {320, 2}}, 401);
  check_shape({.q_heads = 2, .kv_heads = 1, .peak = 6, .lengths = {30011, 9}, .windows = {320, 2}}, 402);
}

TEST_CASE("int2_decode_matches_cpu, more splits than are added up at once") {
  if (gpu_or_skip() == nullptr) return;
  for (const int heads : {3, 12, 16}) {  // even seeds cut finely: one KV head into 50 and 80 splits
    for (const int length : {25000, 40000}) {
      check_shape({.q_heads = heads, .kv_heads = 1, .dim = 64, .group = 64, .lengths = {length}, .windows = {70}}, 550);
    }
  }
}

TEST_CASE("int2_decode does not depend on its neighbours") {
  if (gpu_or_skip() == nullptr) return;
  const DecodeShape shape{.q_heads = 8, .kv_heads = 2, .lengths = {3000, 70, 9000}, .windows = {320, 5, 319}};
  Int2DecodeCase test(shape);
  CHECK(test.run());
  const auto all = test.out.download();
  oscar_int2_decode_args& args = test.args;
  const std::size_t row = static_cast<std::size_t>(shape.q_heads * shape.dim);
  args.split_batch = args.batch;
  args.batch = 1, args.q = static_cast<const std::byte*>(args.q) + 2 * 2 * row, args.out += 2 * row, args.lse += 16;
  for (oscar_page_table* table : {&args.history, &args.window}) {
    table->pages += 2 * table->pages_per_sequence, table->lengths += 2;
  }
  test.out.fill(0xFF);
  CHECK(Int2DecodeCase::decode(args) == 0);
  const auto alone = test.out.download();
  CHECK(std::equal(alone.end() - static_cast<std::ptrdiff_t>(4 * row), alone.end(),
                   all.end() - static_cast<std::ptrdiff_t>(4 * row)));
}

TEST_CASE("int2_decode refuses what it cannot do, and says why") {
  if (gpu_or_skip() == nullptr) return;
  const Int2DecodeCase good({.lengths = {40}, .windows = {3}});
  const auto refused = [&](const auto& spoil, const std::string& reason) {
    oscar_int2_decode_args args = good.args;
    spoil(args);
    CHECK(Int2DecodeCase::decode(args) == cudaErrorInvalidValue);
    CHECK_MESSAGE(refusal().find(reason) != std::string::npos, refusal());
  };
  refused([](auto& a) { a.batch = 0; }, "batch and heads");
  refused([](auto& a) { a.num_q_heads = 7; }, "a multiple of num_kv_heads");
  refused([](auto& a) { a.num_q_heads = 34; }, "1 to 16 query heads");
  refused([](auto& a) { a.split_batch = -1; }, "split_batch must not");
  refused([](auto& a) { a.head_dim = 96; }, "head_dim must be");
  refused([](auto& a) { a.group_size = 16; }, "group_size must be");
  refused([](auto& a) { a.param_dtype = static_cast<oscar_dtype>(7); }, "param_dtype");
  refused([](auto& a) { a.softmax_scale = 0; }, "softmax_scale");
  refused([](auto& a) { a.k_codes.page_stride = std::int64_t{1} << 31; }, "strides");
  refused([](auto& a) { a.v_codes.token_stride += 8; }, "must be aligned");
  refused([](auto& a) { a.history.page_size = 48; }, "page_size");
  refused([](auto& a) { a.history.max_length = 10000; }, "pages_per_sequence");
  refused([](auto& a) { a.window.page_size = 512; }, "page_size");
  refused([](auto& a) { a.window.lengths = nullptr; }, "lengths and pages");
  refused([](auto& a) { a.out = nullptr; }, "out must not be null");
  refused([](auto& a) { a.workspace_bytes -= 1; }, "the workspace must have");
}

TEST_CASE("small: int2_decode") {
  if (gpu_or_skip() == nullptr) return;
  check_shape({.q_heads = 4, .kv_heads = 1, .page_size = 4, .lengths = {70, 0, 1, 0}, .windows = {17, 1, 0, 0}}, 500);
  check_shape({.q_heads = 24,
               .kv_heads = 2,
               .dim = 64,
               .group = 32,
               .params = OSCAR_FLOAT16,
               .page_size = 32,
               .lengths = {600},
               .windows = {130}},
              501);
}

}  // namespace oscar
