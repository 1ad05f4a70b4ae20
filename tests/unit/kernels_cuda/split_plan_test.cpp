// SPDX-License-Identifier: MIT
// How the decode kernels cut sequences: every token is read once, and every piece finds its block and its workspace.
#include <doctest/doctest.h>

#include "kernels/cuda/decode_plan.hpp"

namespace oscar::cuda {
namespace {

void check_plan(int length, int window, const SplitRule& rule) {
  CAPTURE(length);
  CAPTURE(rule.history_pieces);
  const SplitPlan plan(length, window, rule);
  int next = 0;
  for (int split = plan.window_splits; split < plan.count(); ++split) {
    REQUIRE(plan.history_first(split) == next);
    next = std::min(next + plan.history_tokens, length);
  }
  REQUIRE(next == length);
  REQUIRE(plan.window_splits * plan.window_tokens >= window);
  REQUIRE(plan.count() <= SplitPlan::most(length, window, rule));
  REQUIRE(plan.count() <= SplitRule::kMostSplits);
}

}  // namespace

TEST_CASE("decode kernels read each token of a sequence once") {
  for (const int units : {1, 8, 40, 64, 255, 256, 4096}) {
    for (const int kv_heads : {1, 2, 8, 31, 128}) {
      for (int length = 0; length < 140000; length += length < 4000 ? 61 : 997) {
        for (const int warps : {8, 16}) {
          check_plan(length, length % 1501, SplitRule::of(units, kv_heads, warps));
          SplitRule coded = SplitRule::of_coded(units, kv_heads, warps);
          check_plan(length, length % 1501, coded);
          coded.warps = 1 + length % 8;  // as many as the shared memory has room for
          check_plan(length, length % 1501, coded);
        }
      }
    }
  }
}

}  // namespace oscar::cuda
