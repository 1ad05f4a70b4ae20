// SPDX-License-Identifier: MIT
// Each quantiser against its error on independent N(0, 1) rows of 128, found by another implementation.
#include <random>

#include "peers/lloyd_max.hpp"
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

struct Row {
  std::string method;
  double keys, values;  // dB
  double tolerance = 0.05;
};

}  // namespace

TEST_CASE("errors on Gaussian rows") {
  const std::vector<Row> table{{"naive_sym", 2.31, 2.31},
                               {"naive_midrise", 7.64, 7.64},
                               {"quarot", 5.97, 5.97},
                               {"quarot_clip", 6.40, 6.40},
                               {"turboquant_mse2", 9.36, 9.36},
                               {"turboquant_mse3", 14.69, 14.69},
                               {"turboquant_mse4", 20.30, 20.30},
                               {"turboquant_k3v3", 14.71, 13.40},
                               {"turboquant_k3v4", 14.71, 20.03},
                               {"turboquant_4bit", 20.37, 20.03},
                               {"kivi_g32", 8.12, 8.12},
                               {"kivi_g128", 6.01, 6.01},
                               {"quarot_kivi", 7.83, 7.83},
                               {"q4_0", 21.32, 21.32},
                               {"q4_0_rot", 21.32, 21.32},
                               {"q4_1", 22.14, 22.14},
                               {"q5_0", 27.40, 27.40},
                               {"q8_0", 45.44, 45.44},
                               {"fp8_token", 31.80, 31.80},
                               {"nvfp4", 20.44, 20.44},
                               {"mxfp4", 18.95, 18.95},
                               {"lloyd_max", 9.30, 9.30, 0.1},
                               // Analytic: 7.22; standard deviations of 32 values adapt.
                               {"lloyd_max_q2_0", 7.56, 7.56}};
  for (const Row& row : table) {
    const SequenceMethod& method = test::method_named(row.method);
    CAPTURE(row.method);
    const double keys = sqnr_db(method.key), values = sqnr_db(method.value);
    CAPTURE(keys);
    CAPTURE(values);
    CHECK(std::abs(keys - row.keys) <= row.tolerance);
    CHECK(std::abs(values - row.values) <= row.tolerance);
  }
}

TEST_CASE("errors of the published Lloyd-Max levels with exact mean and deviation") {
  const auto error_db = [](const methods::Codebook& book) {
    double signal = 0, noise = 0;
    for (const float x : gaussian_rows()) signal += double{x} * x, noise += std::pow(double{x} - book.nearest(x), 2);
    return 10 * std::log10(signal / noise);
  };
  CHECK(std::abs(error_db(methods::q2_0_codebook()) - 7.22) < 0.05);
  CHECK(std::abs(error_db(methods::gaussian_codebook(2)) - 9.30) < 0.05);
}

TEST_CASE("a clip factor fitted to the rows beats none") { CHECK(sqnr_db(test::method_named("skvq").value) > 7); }

}  // namespace oscar
