// SPDX-License-Identifier: MIT
// What a fit expects errors to cost, against the KL of the sample model whose cache makes them.
#include <doctest/doctest.h>

#include "dump/live_source.hpp"
#include "fit/take.hpp"
#include "measure/kv_method.hpp"
#include "measure/predictions/model_metrics.hpp"
#include "model/tokenizer/tokens.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"

namespace oscar {

TEST_CASE("what a fit expects errors to cost is the KL that they cause") {
  const std::unique_ptr<ModelRunner> runner = open_model(test::data("qwen3-2m"));
  const std::vector<TokenSequence> texts = read_tokens(test::data("golden/qwen3-2m/tokens_calib.npy"), {1400, 8400, 6});
  const auto backend = test::make_test_backend();
  Status silent;
  const Windows windows;
  const auto source = open_live(*runner, texts, {}, silent);
  const auto costs = error_costs(*runner, {texts, {}, windows}, source->layer_ids(), {}, *backend, silent);
  const TakeOptions wanted{.moments = {Moment::kFisher, Moment::kKtk, Moment::kQqt, Moment::kVtv},
                           .windows = windows,
                           .coded = true,
                           .uncentred = {}};
  const Statistics taken = take(*source, wanted, costs, {}, nullptr, *backend, silent);
  const CodedPart set = fit_coded(taken, 2.125, CodedScope::kModel, *backend);
  double expected = 0;
  for (const CodedLayer& layer : set.layers) expected += layer.key.damage + layer.value.damage;
  const auto kl = [&](const KvMethod& method) {
    return measure_model(*runner, {.texts = texts}, {method}, Precision::kExact, *backend, silent)[0].kld_mean;
  };
  const KvMethod all = method_of(set, windows);
  CHECK(kl(all) == doctest::Approx(expected).epsilon(0.4));
  // Sides of layers alone.
  for (const CodedLayer& layer : set.layers) {
    for (const bool keys : {true, false}) {
      KvMethod method = all;
      for (auto& [id, sides] : method.layers) {
        sides.key.quantized = keys && id == layer.layer_id;
        sides.value.quantized = !keys && id == layer.layer_id;
      }
      CAPTURE(layer.layer_id);
      CAPTURE(keys);
      CHECK(kl(method) == doctest::Approx((keys ? layer.key : layer.value).damage).epsilon(0.5));
    }
  }
}

}  // namespace oscar
