// SPDX-License-Identifier: MIT
// How the decode kernels cut sequences: every token is read once, and every piece finds its block and its workspace.
#include "kernels/cuda/split_plan.hpp"

#include <doctest/doctest.h>

namespace oscar::cuda {
namespace {

void check_plan(int length, int window, const SplitRule& rule) {
  CAPTURE(length);
  CAPTURE(rule.history_pieces);
  CAPTURE(rule.round_tokens);
  const SplitPlan plan(length, window, rule);
  int next = 0;
  for (int split = plan.window_splits; split < plan.blocks(); ++split) {
    REQUIRE(plan.history_first(split) == next);
    next = std::min(next + plan.history_tokens, length);
  }
  if (plan.rest_tokens > 0) {
    REQUIRE(plan.window_splits == 1);
    REQUIRE(plan.history_first(plan.blocks()) == next);
    REQUIRE(length - next == plan.rest_tokens);
    REQUIRE(plan.rest_tokens <= plan.history_tokens);
    next = length;
  }
  REQUIRE(next == length);
  REQUIRE(plan.window_splits * plan.window_tokens >= window);
  REQUIRE(plan.blocks() <= SplitPlan::most(length, window, rule));
}

}  // namespace

TEST_CASE("decode kernels read each token of a sequence once") {
  int rests = 0;
  for (const int kv_heads : {1, 2, 4, 8, 16, 31, 60, 63}) {
    for (int warps = 1; warps <= 8; ++warps) {
      for (const int step : {32, 64}) {
        SplitRule rule = SplitRule::of_coded(kv_heads, kv_heads);
        rule.round_tokens = warps * step;
        for (int length = 0; length < 140000; length += length < 4000 ? 61 : 997) {
          check_plan(length, length % 321, rule);
          rests += SplitPlan(length, 64, rule).rest_tokens > 0 ? 1 : 0;
        }
      }
    }
  }
  CHECK(rests > 1000);  // few would say that the rule leaves out what this test is for
}

TEST_CASE("decode kernels cut windows and histories of batches without gaps") {
  for (const int units : {1, 8, 40, 64, 255, 256, 4096}) {
    for (const int kv_heads : {1, 8, 128}) {
      for (int length = 0; length < 140000; length += length < 4000 ? 61 : 997) {
        check_plan(length, length % 1501, SplitRule::of(units, kv_heads));
        check_plan(length, length % 1501, SplitRule::of_coded(units, kv_heads));
      }
    }
  }
}

}  // namespace oscar::cuda
