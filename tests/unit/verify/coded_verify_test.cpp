// SPDX-License-Identifier: MIT
// What verify checks of the coded cache without data, and what its report shows of it, on a fitted one and on planted
// defects.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "set/coded_part.hpp"
#include "unit/verify/sample.hpp"
#include "verify/verdict/verdict.hpp"

namespace oscar {
namespace {

using namespace test;

const CodedPart& fitted() { return *Sample::get().all_parts().coded; }

Verified verified_with(const std::function<void(CodedPart&)>& change) {
  const TemporaryFolder folder;
  CodedPart set = fitted();
  change(set);
  return verified(written(folder, set));
}

double& largest_entry(MatrixStack& matrices) {
  return *std::ranges::max_element(matrices.data, {}, [](double x) { return std::abs(x); });
}

}  // namespace

TEST_CASE("a read side that does not undo its write side is rejected by name, in float32 and in bfloat16") {
  const Verified sound = verified_with([](CodedPart&) {});
  CHECK(sound.report.verdict == Verdict::kNotMeasured);
  int found = 0;
  for (const Check& check : sound.report.checks) {
    if (!check.name.starts_with("inverse_pair")) continue;
    CHECK(check.ok == true);
    // Casts to bfloat16 are seen, and leave room below the limit.
    const bool cast = check.name == "inverse_pair_bf16";
    CHECK(*check.value < (cast ? 0.004 : 1e-6));
    CHECK(*check.value > (cast ? 1e-4 : 0));
    ++found;
  }
  CHECK(found == 16);
  const Verified slight =
      verified_with([](CodedPart& set) { largest_entry(set.layers[1].value.transform.read_rotation) *= 1.001; });
  check_contains(slight.reasons, "inverse_pair failed (layer 1, value)");
  CHECK(slight.reasons.find("inverse_pair_bf16") == std::string::npos);
  const Verified wrong =
      verified_with([](CodedPart& set) { largest_entry(set.layers[2].key.transform.read_rotation) *= -1; });
  CHECK(wrong.report.verdict == Verdict::kRejected);
  check_contains(wrong.reasons, "inverse_pair failed (layer 2, key)");
  check_contains(wrong.reasons, "inverse_pair_bf16 failed (layer 2, key)");
  const Verified transposed = verified_with([](CodedPart& set) {
    MatrixStack& read = set.layers[0].key.transform.read_rotation;
    const auto dim = static_cast<std::size_t>(read.dim);
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < i; ++j) std::swap(read.data[i * dim + j], read.data[j * dim + i]);
    }
  });
  check_contains(transposed.reasons, "inverse_pair_bf16 failed (layer 0, key)");
}

TEST_CASE("the report has the plan of every head: its channels by bits") {
  const Verified v = verified_with([](CodedPart&) {});
  REQUIRE(v.report.plan.size() == 8);
  double bits = 0;
  for (const HeadPlan& head : v.report.plan) {
    REQUIRE(head.channels.size() == 9);
    CHECK(std::accumulate(head.channels.begin(), head.channels.end(), 0) == 128);
    for (int b = 0; b <= 8; ++b) bits += b * head.channels[static_cast<std::size_t>(b)];
  }
  CHECK(bits / (8 * 128) + 16.0 / 128 == bits_of(fitted()));
  CHECK(v.report.plan[1].target == "value");
  CHECK(v.report.plan[6].layer == 3);
  CHECK(v.report.plan[0].target == "key");
  REQUIRE(v.report.spectra.size() == 8);
  for (const Spectra& side : v.report.spectra) {
    CHECK(side.values.front() == 1);
    CHECK(std::is_sorted(side.values.rbegin(), side.values.rend()));
  }
}

}  // namespace oscar
