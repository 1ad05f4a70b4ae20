// SPDX-License-Identifier: MIT
#include "verify/verdict/held_out.hpp"

#include <doctest/doctest.h>

#include <numeric>

#include "model/tokenizer/tokens.hpp"

namespace oscar {
namespace {

/// `length` ids from `first` on: different numbers are different text.
TokenSequence ids(std::int32_t first, std::size_t length) {
  TokenSequence sequence(length);
  std::iota(sequence.begin(), sequence.end(), first);
  return sequence;
}

std::optional<std::int64_t> fitted_on(const std::vector<TokenSequence>& fitted,
                                      const std::vector<TokenSequence>& measured) {
  return verify::sequences_fitted_on(describe(fitted), describe(measured));
}

}  // namespace

TEST_CASE("a sequence was fitted on if half of its blocks were") {
  const std::vector<TokenSequence> fitted{ids(0, 600), ids(10000, 100)};  // four blocks, and a short one
  CHECK(fitted_on(fitted, fitted) == 2);
  CHECK(fitted_on(fitted, {ids(5000, 600), ids(10000, 100), ids(128, 200)}) == 2);
  CHECK(fitted_on(fitted, {ids(384, 256)}) == 1);  // one of two blocks
  CHECK(fitted_on(fitted, {ids(384, 384)}) == 0);  // one of three
  CHECK(fitted_on(fitted, {ids(10000, 99)}) == 0);
  CHECK(fitted_on(fitted, {ids(5000, 600)}) == 0);
}

TEST_CASE("where token ids are at hand, fitted blocks are found wherever they stand") {
  const CalibrationData fitted = describe({ids(0, 600), ids(10000, 100)});
  const auto seen = [&](const TokenSequence& sequence) {
    return verify::sequences_fitted_on(fitted, std::vector<TokenSequence>{sequence});
  };
  TokenSequence later = ids(7, 400);  // cut elsewhere: blocks at 121 and 249
  CHECK(seen(later) == 1);
  later.insert(later.begin(), 70000);
  CHECK(seen(later) == 1);
  CHECK(seen(ids(10000, 100)) == 1);
  CHECK(seen(ids(5000, 600)) == 0);
  CHECK(seen(ids(600, 256)) == 0);
  CHECK_FALSE(verify::sequences_fitted_on(CalibrationData(), std::vector<TokenSequence>{later}).has_value());
}

TEST_CASE("without blocks only the same data is known") {
  CalibrationData fitted = describe({ids(0, 300)});
  const CalibrationData measured = fitted;
  fitted.blocks.clear();
  CHECK(verify::sequences_fitted_on(fitted, measured) == 1);
  CHECK_FALSE(verify::sequences_fitted_on(fitted, describe({ids(0, 256)})).has_value());
  CHECK_FALSE(verify::sequences_fitted_on(CalibrationData(), CalibrationData()).has_value());
}

}  // namespace oscar
