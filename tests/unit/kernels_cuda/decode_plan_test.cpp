// SPDX-License-Identifier: MIT
// How the decode kernels cut their work: on the host, where neither a GPU nor CUDA is needed.
#include "kernels/cuda/decode_plan.hpp"

#include <doctest/doctest.h>

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
  REQUIRE(plan.count() <= SplitRule::kMostPieces + SplitRule::kMostWindowPieces);
}

}  // namespace

TEST_CASE("decode kernels read each token of a sequence once") {
  for (const int units : {1, 8, 40, 64, 255, 256, 4096}) {
    for (const int kv_heads : {1, 2, 8, 31, 128}) {
      for (int length = 0; length < 140000; length += length < 4000 ? 61 : 997) {
        for (const int warps : {8, 16}) {
          SplitRule rule = SplitRule::of(units, kv_heads, warps, length % 2 == 1);
          check_plan(length, length % 1501, rule);
          rule.warps = 1 + length % 8;  // as many as the shared memory has room for
          check_plan(length, length % 1501, rule);
        }
      }
    }
  }
}

TEST_CASE(
    "histories of 4096 tokens are cut into no more pieces than find room at once, unless they are more themselves") {
  for (const bool turns : {false, true}) {
    const int places = turns ? 264 : 528;
    for (const int units : {64, 128, 160, 256, 320, 512}) {
      const int blocks = units * SplitPlan(4096, 320, SplitRule::of(units, 8, 16, turns)).history_splits;
      CAPTURE(units);
      CHECK(blocks <= std::max(places, units));
      CHECK(2 * blocks > places);
    }
  }
}

TEST_CASE("values of few operands, and up to four query heads, have steps of 64 tokens") {
  for (const int dim : {64, 128}) {
    for (int heads = 1; heads <= 16; ++heads) {
      CHECK(CodedTiling::of(dim, heads, 8).step() == 64);
      CHECK(CodedTiling::of(dim, heads, 10).step() == (heads <= 4 ? 64 : 32));
      CHECK(CodedTiling::of(dim, heads, 10).warps_at_once() == 16);
    }
  }
  CHECK(CodedTiling::of(128, 4, 14).warps_at_once() == 8);
  CHECK(CodedTiling::of(256, 4, 8).warps_at_once() == 8);
}

/// What a block has beside its warps.
constexpr int nothing(const CodedTiling&, int) { return 0; }

TEST_CASE("steps become shorter where long ones would halve the warps of a block") {
  constexpr int kBytes = 108544;  // that half a multiprocessor of an H100 leaves to copies beside 8 operands of keys
  for (const int heads : {12, 16}) {
    const CodedTiling few = CodedTiling::of(128, heads, 2);
    CHECK(few.warps(kBytes, 7, 8, nothing) == 8);
    CHECK(few.fitted(kBytes, 7, 8, nothing).step() == 64);
    CHECK(few.warps(kBytes, 9, 8, nothing) == 4);
    CHECK(few.fitted(kBytes, 9, 8, nothing).step() == 32);
    CHECK(few.fitted(kBytes, 9, 8, nothing).warps(kBytes, 9, 8, nothing) == 8);
    CHECK(few.fitted(kBytes, 9, 4, nothing).step() == 64);  // blocks of one team have nothing to lose
  }
}

TEST_CASE("a block of warps whose copies take less than their team's results still fits") {
  constexpr int kBytes = 94208, kPlanes = 11;  // what compute capability 8.9 has for a block's copies and queries
  const CodedTiling tiling = CodedTiling::of(256, 8, 20);
  const auto queries = [](const CodedTiling& of, int warps) {
    return static_cast<int>(TurnedPlaces(256, of.step(), of.key_tiles, 22, warps).end);
  };
  const int warps = tiling.warps(kBytes, kPlanes, 8, queries);
  CHECK(tiling.warp_bytes(kPlanes) == 4 * 4 * (16 * 32 + 8));
  CHECK(warps == 3);
  CHECK(queries(tiling, warps) + warps * tiling.warp_bytes(kPlanes) <= kBytes);
}

TEST_CASE("a block has one team at least, and steps stay long where shorter ones gain nothing") {
  const CodedTiling few = CodedTiling::of(128, 16, 8);
  CHECK(few.warps(1000, 4, 8, nothing) == 4);
  CHECK(few.fitted(1000, 4, 8, nothing).step() == 64);
  CHECK(CodedTiling::of(128, 4, 8).warps(1000, 4, 8, nothing) == 1);
}

}  // namespace oscar::cuda
