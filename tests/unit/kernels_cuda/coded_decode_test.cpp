// SPDX-License-Identifier: MIT
// Decode attention over pages of a coded cache against fp64 on the CPU.
#include "unit/kernels_cuda/decode_case.hpp"

namespace oscar {
namespace {

using namespace test;

using Plan = std::vector<std::uint8_t>;

void check_coded(const DecodeShape& s, unsigned seed) { check_decode<CodedDecodeCase>("coded_decode", s, seed, 5e-3); }

}  // namespace

TEST_CASE("coded_decode_matches_cpu, every head size, few and many bits") {
  if (gpu_or_skip() == nullptr) return;
  unsigned seed = 500;
  for (const int dim : {64, 128, 256}) {
    for (const int most_bits : {1, 2, 4, 8}) {
      if (dim * most_bits > 1024) continue;  // more operands than a KV head may have
      const float peak = seed % 3 == 0 ? 0.2F : seed % 3 == 1 ? 1.0F : 8.0F;
      check_coded({.q_heads = 4,
                   .kv_heads = 1,
                   .dim = dim,
                   .peak = peak,
                   .lengths = {0, 1, 33, 700, 517},
                   .windows = {1, 0, 64, 320, 129},
                   .most_bits = most_bits},
                  seed++);
    }
  }
}

TEST_CASE("coded_decode_matches_cpu, any number of query heads") {
  if (gpu_or_skip() == nullptr) return;
  for (int heads = 1; heads <= 16; ++heads) {
    for (const int dim : {64, 128, 256}) {
      check_coded({.q_heads = 2 * heads, .kv_heads = 2, .dim = dim, .lengths = {131}, .windows = {19}},
                  static_cast<unsigned>(600 + heads));
    }
  }
}

TEST_CASE("coded_decode_matches_cpu, every shape that the kernel is compiled for, several steps a warp") {
  if (gpu_or_skip() == nullptr) return;
  const std::vector<std::pair<int, Plan>> plans{
      {8, Plan(8, 8)},
      {10, {8, 8, 8, 8, 8, 8, 3, 3}},
      {8, Plan(16, 2)},
      {10, {8, 8, 8, 6, 4, 3, 3, 2, 2, 1, 1, 1, 1, 0, 0, 0}},
      {14, {8, 7, 7, 7, 7, 6, 6, 6, 5, 4, 2, 2, 0, 0, 0, 0}},
      {16, Plan(32, 2)},
  };
  unsigned seed = 651;  // odd seeds cut coarsely
  for (const auto& [operands, plan] : plans) {
    const int dim = 8 * static_cast<int>(plan.size());
    for (const int heads : {3, 8, 12, 16}) {
      const DecodeShape s{.q_heads = heads,
                          .kv_heads = 1,
                          .dim = dim,
                          .lengths = {3900, 1700},
                          .windows = {70, 0},
                          .key_plan = plan,
                          .value_plan = plan};
      CHECK(CodedDecodeCase(s).args.layout.value_operands == operands);
      check_coded(s, seed += 2);
    }
  }
  // Keys of so many bits that on an H100 a single sequence's steps are shortened: see CodedTiling::fitted().
  Plan few(16);
  few[0] = 2;
  check_coded(
      {.q_heads = 16, .kv_heads = 1, .lengths = {3900}, .windows = {9}, .key_plan = Plan(16, 8), .value_plan = few},
      692);
}

TEST_CASE("coded_decode_matches_cpu, any page size") {
  if (gpu_or_skip() == nullptr) return;
  for (int page = 4; page <= 256; page *= 2) {
    check_coded({.page_size = page, .lengths = {1500, 64, 255}, .windows = {320, 5, 0}},
                static_cast<unsigned>(700 + page / 4));
  }
}

TEST_CASE("coded_decode_matches_cpu, any number of query tokens: each sees none of those after it") {
  if (gpu_or_skip() == nullptr) return;
  for (int tokens = 2; tokens <= 8; ++tokens) {
    for (const int per_kv_head : {1, 3, 4, 12}) {
      for (const int dim : {64, 128, 256}) {
        check_coded({.q_heads = 2 * per_kv_head,
                     .kv_heads = 2,
                     .dim = dim,
                     .lengths = {0, 131, 700},
                     .windows = {3, 70, 0},
                     .query_tokens = tokens},
                    static_cast<unsigned>(800 + 10 * tokens + per_kv_head));
      }
    }
  }
}

TEST_CASE("coded_decode_matches_cpu, keys without bits: all tokens of the history count alike") {
  if (gpu_or_skip() == nullptr) return;
  for (const int heads : {1, 4, 16}) {
    check_coded({.q_heads = heads, .kv_heads = 1, .lengths = {700, 3}, .windows = {0, 70}, .key_plan = Plan(16)}, 870);
  }
}

TEST_CASE("coded_decode_matches_cpu, more splits than are added up at once") {
  if (gpu_or_skip() == nullptr) return;
  for (const int heads : {3, 12, 16}) {  // even seeds cut finely: one KV head into 50 and 80 splits
    check_coded({.q_heads = heads, .kv_heads = 1, .dim = 64, .lengths = {25000}, .windows = {70}, .most_bits = 2}, 880);
    check_coded({.q_heads = heads, .kv_heads = 1, .dim = 64, .lengths = {40000}, .windows = {9}, .most_bits = 2}, 882);
  }
}

TEST_CASE("small: coded_decode") {
  if (gpu_or_skip() == nullptr) return;
  unsigned seed = 900;
  for (const int tokens : {1, 2}) {
    for (const int dim : {64, 128, 256}) {
      check_coded({.dim = dim, .lengths = {1, 140}, .windows = {20, 3}, .query_tokens = tokens}, seed++);
    }
  }
  check_coded({.q_heads = 12, .kv_heads = 1, .dim = 64, .lengths = {200}, .windows = {20}}, seed++);  // teams
  check_coded({.q_heads = 4, .kv_heads = 1, .dim = 64, .lengths = {70}, .windows = {0}, .key_plan = Plan(8)}, seed++);
}

TEST_CASE("coded_decode refuses what it cannot do, and says why") {
  if (gpu_or_skip() == nullptr) return;
  CodedDecodeCase test({});
  const auto refuses = [&](const char* why) {
    CHECK_FALSE(test.run());
    INFO(refusal());
    CHECK(refusal().find(why) != std::string::npos);
  };
  const oscar_coded_decode_args good = test.args;
  test.args.history.page_size = 2, test.args.history.pages_per_sequence = 1000;
  refuses("page_size of the history must be 4 or more"), test.args = good;
  test.args.page_stride = 8, refuses("page_stride must be a multiple of 16"), test.args = good;
  test.args.layout.table = nullptr, refuses("layout.table must be device memory"), test.args = good;
  test.args.workspace_bytes -= 1, refuses("the workspace must have"), test.args = good;
  for (const int tokens : {-1, 9}) test.s.query_tokens = tokens, refuses("query_tokens must be 1 to 8");
  test.s.query_tokens = 1;
  CHECK(test.run());
}

TEST_CASE("a coded format with increasing bits, with nine bits, or with a step of 0 is refused") {
  if (gpu_or_skip() == nullptr) return;
  std::vector<std::uint8_t> bits(8, 2);
  std::vector<float> steps(64, 1);
  oscar_coded_layout layout;
  const oscar_coded_format format{64, 1, bits.data(), bits.data(), steps.data(), steps.data()};
  CHECK(code_layout(format, layout, nullptr) == 0);
  CHECK(layout.token_bytes == 8 * (2 + 2) + 4);
  const auto refused = [&](const char* why) {
    CHECK(code_layout(format, layout, nullptr) != 0);
    CHECK_MESSAGE(refusal().find(why) != std::string::npos, refusal());
  };
  bits[7] = 3, refused("must not increase");
  bits[0] = bits[7] = 9, refused("0 to 8 bits");
  bits.assign(8, 2), steps[5] = 0, refused("steps must be positive");
}

}  // namespace oscar
