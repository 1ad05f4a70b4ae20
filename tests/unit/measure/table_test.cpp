// SPDX-License-Identifier: MIT
// Every method that decodes histories: bits per element for 8 KV heads of 128 against published figures, and the error
// on independent N(0, 1) rows of 128 against another implementation.
#include <random>
#include <set>

#include "rows.hpp"

namespace oscar {
namespace {

constexpr int kHeads = 8, kDim = 128;

const std::vector<float>& gaussian_rows() {
  static const std::vector<float> rows = [] {
    std::mt19937 engine(11);
    std::normal_distribution<float> normal;
    std::vector<float> values(std::size_t{1536} * kHeads * kDim);
    for (float& x : values) x = normal(engine);
    return values;
  }();
  return rows;
}

double sqnr_db(const SideMethod& side) {
  const std::vector<float>& rows = gaussian_rows();
  const std::vector<float> found = test::flat_reconstruction(side, rows, kHeads, kDim);
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    signal += double{rows[i]} * rows[i];
    noise += std::pow(double{rows[i]} - found[i], 2);
  }
  return 10 * std::log10(signal / noise);
}

double mean_bits(const Peer& method, double parameter_bits) {
  const KvShape shape{kDim, kHeads};
  const StoredBits key = method.key.bits(shape), value = method.value.bits(shape);
  return (key.codes + value.codes + (key.parameters + value.parameters) * parameter_bits) / 2;
}

struct Row {
  std::string method;
  double fp16_bits, fp32_bits;
  double keys = 0, values = 0;  // dB; 0: no figure is known
};

}  // namespace

TEST_CASE("bits per element, and errors on Gaussian rows") {
  const double kNorm = 32.0 / 1024;
  const std::vector<Row> table{{"quarot", 2 + 18.0 / 128, 2 + 34.0 / 128, 5.97, 5.97},
                               {"turboquant_k3v3", 3.1875, 3.375, 14.71, 13.40},
                               {"kivi_g32", 3, 4, 8.12, 8.12},
                               {"kivi_g128", 2.25, 2.5, 6.01, 6.01},
                               {"kitty", 2.375 + 0.03125, 2.625 + 0.03125},
                               {"rotatekv", 2.25, 2.5},
                               {"occam", 3 + kNorm / 2, 4 + kNorm / 2, 7.83, 7.83},
                               {"optr_centred", 2.25, 2.5},
                               {"q8_0", 8.5, 8.5, 45.44, 45.44},
                               {"q8_0_rot", 8.5, 8.5, 45.44, 45.44},
                               {"q4_0", 4.5, 4.5, 21.32, 21.32},
                               {"q4_0_rot", 4.5, 4.5, 21.32, 21.32},
                               {"fp8", 8, 8, 31.53, 31.53},
                               {"fp8_scaled", 8, 8, 31.55, 31.55},
                               {"int8_per_token_head", 8.25, 8.25, 43.78, 43.78},
                               {"nvfp4", 4.5, 4.5, 20.44, 20.44}};
  for (const Row& row : table) {
    const Peer& method = peer_named(row.method);
    CAPTURE(row.method);
    CHECK(mean_bits(method, 16) == doctest::Approx(row.fp16_bits).epsilon(1e-9));
    CHECK(mean_bits(method, 32) == doctest::Approx(row.fp32_bits).epsilon(1e-9));
    if (row.keys == 0) continue;
    CHECK(sqnr_db(method.key) == doctest::Approx(row.keys).epsilon(0.05 / row.keys));
    CHECK(sqnr_db(method.value) == doctest::Approx(row.values).epsilon(0.05 / row.values));
  }
  CHECK(table.size() == test::decoding_peers().size());
}

TEST_CASE("a group that does not divide a head costs what it starts") {
  CHECK(peer_named("kivi_g128").value.bits({96, 4}).parameters == 2.0 / 96);
  CHECK(peer_named("kivi_g32").value.bits({80, 4}).parameters == doctest::Approx(2 * 3.0 / 80));
}

TEST_CASE("names are unique and say what stands in") {
  std::set<std::string> names;
  for (const Peer& peer : peers()) CHECK(names.insert(peer.name).second);
  // These want calibration text, which a dump lacks.
  for (const char* name : {"nvfp4", "fp8_scaled", "optr_centred", "rotatekv"}) {
    CHECK_MESSAGE(peer_named(name).description.find("the history itself") != std::string::npos, name);
  }
}

}  // namespace oscar
