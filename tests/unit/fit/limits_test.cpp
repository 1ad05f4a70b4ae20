// SPDX-License-Identifier: MIT
// What a fit refuses: too little data, metrics that bfloat16 would spoil.
#include <doctest/doctest.h>

#include <cmath>

#include "support/backend.hpp"
#include "support/fit_source.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

/// Keys along one direction and queries along another, `overlap` = the cosine between them, both dense in channels.
test::MemorySource meeting(double overlap) {
  auto layer = test::synthetic_layer({.tokens = 400});
  const auto fill = [](Tensor& rows, double along, double across) {
    rows = convert(rows, DType::kF32);
    const std::span<float> values = rows.values<float>();
    for (std::size_t row = 0; row < values.size(); row += 16) {
      const float size = values[row];
      for (std::size_t c = 0; c < 16; ++c) {
        const double u = 1 + 0.1 * static_cast<double>(c), v = c % 2 == 0 ? 1 / u : -1 / u;  // their dot product is 0
        values[row + c] = size * static_cast<float>(along * u / 7.41 + across * v / 2.48);
      }
    }
  };
  fill(layer[0].k, 1, 0);
  fill(layer[0].q, overlap, std::sqrt(1 - overlap * overlap));
  return test::MemorySource({{3, std::move(layer)}});
}

RotationPart stretched(double overlap, Status& status) {
  test::MemorySource source = meeting(overlap);
  FitOptions options;
  options.recipe = "stretch", options.stretch_lambda = 1e-4;
  const auto backend = test::make_test_backend();
  return test::fit_rotations_of(source, options, *backend, status);
}

/// A source of which only the numbers are asked for.
class Numbers : public QkvSource {
 public:
  explicit Numbers(std::int64_t tokens, int value_dim = 0) {
    model_.head_dim = 64, model_.value_dim = value_dim, model_.num_key_value_heads = 4;
    calibration_.tokens = tokens;
  }
  [[nodiscard]] std::unique_ptr<LayerStream> open(int) override { return nullptr; }
};

std::string said_of(std::int64_t tokens, const std::string& granularity, const std::string& recipe = "oscar") {
  FitOptions options;
  options.granularity = granularity;
  options.recipe = recipe;
  return too_few_tokens(Numbers(tokens), plan_parts(options)).value_or("");
}

}  // namespace

TEST_CASE("too few tokens are told with the number that would do, by layer and by head") {
  CHECK(said_of(255, "layer") ==
        "255 tokens are few for the matrices of a layer with 64 channels: 256 or more are needed");
  CHECK(said_of(256, "layer").empty());
  CHECK(said_of(256, "head,layer").find("of a head with 64 channels: 1024 or more") != std::string::npos);
  CHECK(said_of(1024, "head,layer").empty());
  CHECK(said_of(10, "", "hadamard").empty());
  CHECK(said_of(0, "layer").empty());
  const std::string wide = too_few_tokens(Numbers(10, 128), plan_parts(FitOptions())).value_or("");
  CHECK(wide.find("with 128 channels: 2048") != std::string::npos);
}

TEST_CASE("a metric between keys and queries that hardly meet is bounded, and refused where bfloat16 would spoil it") {
  Status status;
  const Json scores = stretched(0.02, status).layers[0].key.scores["stretch"];
  CHECK(scores["predicted_gain"][0] > 1e3);
  CHECK(scores["condition"][0] < 1000);
  CHECK(scores["bf16_disturbance"][0] < 1e-3);
  CHECK_ERROR(stretched(0, status), NumericalError, "ill-conditioned");
}

TEST_CASE("a part that cannot be made is left out where nobody named one, and stops the fit where somebody did") {
  test::HeardStatus heard;
  test::MemorySource source = meeting(0);
  const auto backend = test::make_test_backend();
  const auto fitted = [&](const FitOptions& options) {
    return fit(take({.source = source}, options, {}, *backend, heard), options, *backend, heard);
  };
  const Set set = fitted({.stretch_lambda = 1e-4, .windows = {16, 32}});
  CHECK((set.coded && set.rotations.contains(kRotationsName) && !set.rotations.contains(kWithMeansName)));
  CHECK(heard.text.find("part with_means is left out: layer 3: the metric of the stretch is so ill-conditioned") !=
        std::string::npos);
  CHECK_ERROR(fitted({.readers = {"sglang"}, .stretch_lambda = 1e-4, .windows = {16, 32}}), NumericalError,
              "ill-conditioned");
}

}  // namespace oscar
