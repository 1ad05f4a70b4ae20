// SPDX-License-Identifier: MIT
// Small matrices through a method, and rows turned by a Hadamard matrix that is written down here.
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/backend.hpp"
#include "measure/peers/baselines.hpp"

namespace oscar::test {

using Rows = std::vector<std::vector<float>>;

/// x H, H Sylvester's matrix / sqrt(columns); its own inverse.
inline Rows turned(const Rows& x) {
  Rows y = x;
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t j = 0; j < x[t].size(); ++j) {
      double sum = 0;
      for (std::size_t i = 0; i < x[t].size(); ++i) sum += (std::popcount(i & j) % 2 == 0 ? 1 : -1) * double{x[t][i]};
      y[t][j] = static_cast<float>(sum / std::sqrt(static_cast<double>(x[t].size())));
    }
  }
  return y;
}

/// Those that decode histories.
inline std::vector<Peer> decoding_peers() {
  std::vector<Peer> found;
  for (const Peer& peer : peers()) {
    if (peer.key.reconstruct != nullptr) found.push_back(peer);
  }
  return found;
}

/// Every row of one sequence is history; fp32.
inline std::vector<float> flat_reconstruction(const SideMethod& side, const std::vector<float>& rows, int heads,
                                              int dim, std::optional<Rotary> rotary = std::nullopt) {
  static const std::unique_ptr<Backend> backend = make_cpu_backend();
  const auto tokens = static_cast<std::int64_t>(rows.size()) / (heads * dim);
  return reconstruct(side, heads_view(rows, tokens, heads, dim), {0, tokens},
                     {std::move(rotary), Precision::kExact, backend.get()});
}

/// One head.
inline Rows reconstruction(const SideMethod& side, const Rows& x, std::optional<Rotary> rotary = std::nullopt) {
  std::vector<float> flat;
  for (const auto& row : x) flat.insert(flat.end(), row.begin(), row.end());
  flat = flat_reconstruction(side, flat, 1, static_cast<int>(x[0].size()), std::move(rotary));
  Rows y = x;
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t j = 0; j < x[t].size(); ++j) y[t][j] = flat[t * x[t].size() + j];
  }
  return y;
}

inline void check_close(const Rows& found, const Rows& expected, double tolerance) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t t = 0; t < found.size(); ++t) {
    for (std::size_t j = 0; j < found[t].size(); ++j) {
      CAPTURE(t);
      CAPTURE(j);
      CAPTURE(expected[t][j]);
      CHECK(std::abs(found[t][j] - expected[t][j]) <= tolerance);
    }
  }
}

}  // namespace oscar::test
