// SPDX-License-Identifier: MIT
// Moments of a real dump against somebody else's numpy (tests/data/make/moment_oracle.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "dump/folder_source.hpp"
#include "moments/take.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"
#include "tensor/hdf5.hpp"

namespace oscar {
namespace {

/// Largest difference of M u from the oracle's, over the largest of those; u_i = cos(i).
double error_of(const MatrixStack& moments, std::span<const double> expected) {
  REQUIRE(moments.count == 1);
  const auto d = static_cast<std::size_t>(moments.dim);
  REQUIRE(expected.size() == d);
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < d; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < d; ++j) sum += moments[0][i * d + j] * std::cos(static_cast<double>(j));
    error = std::max(error, std::abs(sum - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return error / largest;
}

}  // namespace

TEST_CASE("all moments of a real dump equal an independent numpy's") {
  const Hdf5Reader oracle(test::data("moments/oracle_moments.h5"));
  const auto backend = test::make_test_backend();
  Status status;
  const auto source = open_dump(test::published_fits().back() / "dump", {}, status);
  for (const int layer : source->layer_ids()) {
    CAPTURE(layer);
    const auto stream = source->open(layer);
    const auto expected = [&](const std::string& name) {
      const Tensor all = oracle.read("/" + name);
      const auto d = static_cast<std::size_t>(all.shape[1]);
      const auto values = all.values<double>().subspan(static_cast<std::size_t>(layer) * d, d);
      return std::vector<double>(values.begin(), values.end());
    };
    const MatrixStack queries = take(*stream, Moment::kQqt, *backend).mean();
    CHECK(error_of(queries, expected("query_moments")) < 1e-9);
    CHECK(error_of(take(*stream, Moment::kKtk, *backend).mean(), expected("key_moments")) < 1e-9);
    CHECK(error_of(take_sst(*stream, queries, *backend).mean(), expected("sst")) < 1e-9);
  }
}

}  // namespace oscar
