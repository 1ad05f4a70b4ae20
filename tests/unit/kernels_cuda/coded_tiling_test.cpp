// SPDX-License-Identifier: MIT
// Which shape of the coded decode kernel is taken: on any machine.
#include <doctest/doctest.h>

#include "kernels/cuda/decode_plan.hpp"

namespace oscar::cuda {

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

TEST_CASE("steps become shorter where long ones would halve the warps of a block") {
  constexpr int kBytes = 108544;  // that half a multiprocessor of an H100 leaves to copies beside 8 operands of keys
  for (const int heads : {12, 16}) {
    const CodedTiling few = CodedTiling::of(128, heads, 2);
    CHECK(few.warps(kBytes, 7, 8) == 8);
    CHECK(few.fitted(kBytes, 7, 8).step() == 64);
    CHECK(few.warps(kBytes, 9, 8) == 4);
    CHECK(few.fitted(kBytes, 9, 8).step() == 32);
    CHECK(few.fitted(kBytes, 9, 8).warps(kBytes, 9, 8) == 8);
    CHECK(few.fitted(kBytes, 9, 4).step() == 64);  // blocks of one team have nothing to lose
  }
}

TEST_CASE("a block has one team at least, and steps stay long where shorter ones gain nothing") {
  const CodedTiling few = CodedTiling::of(128, 16, 8);
  CHECK(few.warps(1000, 4, 8) == 4);
  CHECK(few.fitted(1000, 4, 8).step() == 64);
  CHECK(CodedTiling::of(128, 4, 8).warps(1000, 4, 8) == 1);
}

}  // namespace oscar::cuda
