// SPDX-License-Identifier: MIT
#include "fit/enough_tokens.hpp"

#include <doctest/doctest.h>

namespace oscar {
namespace {

/// A source of which only the numbers are asked for.
class Numbers : public QkvSource {
 public:
  explicit Numbers(std::int64_t tokens) {
    model_.head_dim = 64, model_.num_key_value_heads = 4;
    calibration_.tokens = tokens;
  }
  [[nodiscard]] const ModelIdentity& model() const override { return model_; }
  [[nodiscard]] const CalibrationData& calibration() const override { return calibration_; }
  [[nodiscard]] const std::vector<int>& layer_ids() const override { return layers_; }
  [[nodiscard]] std::unique_ptr<LayerStream> open(int) override { return nullptr; }

 private:
  ModelIdentity model_;
  CalibrationData calibration_;
  std::vector<int> layers_;
};

std::string said_of(std::int64_t tokens, const std::string& granularity, const std::string& recipe = "oscar") {
  FitOptions options;
  options.granularity = granularity;
  options.recipe = recipe;
  return too_few_tokens(Numbers(tokens), options).value_or("");
}

}  // namespace

TEST_CASE("too few tokens are told with the number that would do, by layer and by head") {
  CHECK(said_of(255, "layer") ==
        "255 tokens are few for the matrices of a layer with 64 channels: 256 or more are needed");
  CHECK(said_of(256, "layer").empty());
  CHECK(said_of(256, "head,layer").find("of a head with 64 channels: 1024 or more") != std::string::npos);
  CHECK(said_of(1024, "head,layer").empty());
  CHECK(said_of(10, "layer", "hadamard").empty());
  CHECK(said_of(0, "layer").empty());
}

}  // namespace oscar
