// SPDX-License-Identifier: MIT
// The pass that shows attention to verify goes on to the model's predictions, and is the exact run beside the methods.
#include <algorithm>
#include <mutex>

#include "measure/kv_method.hpp"
#include "measure/peers/baselines.hpp"
#include "measure/predictions/model_metrics.hpp"
#include "unit/model/random_model.hpp"
#include "unit/verify/sample.hpp"
#include "verify/verify.hpp"

namespace oscar {
namespace {

using namespace test;

std::vector<std::vector<float>> logits_of(const FinalStates& states, const std::vector<TokenSequence>& sequences,
                                          int vocab_size) {
  std::vector<std::vector<float>> logits;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    states.logits(s, logits.emplace_back(sequences[s].size() * static_cast<std::size_t>(vocab_size)));
  }
  return logits;
}

/// Keeps what is said of the metrics of a model.
class Percentages : public Status {
 public:
  void progress(const std::string& stage, std::int64_t done, std::int64_t) override {
    const std::lock_guard lock(mutex_);
    if (stage == "model metrics, per cent") said.push_back(done);
  }
  void model_progress(const ModelProgress& at) override {
    const std::lock_guard lock(mutex_);
    left = at.to_do();
  }
  std::vector<std::int64_t> said;
  std::int64_t left = -1;

 private:
  std::mutex mutex_;
};

}  // namespace

TEST_CASE("a live source that goes to the end has the final states of a run, whatever the model and its layers") {
  const std::vector<TokenSequence> sequences{some_tokens(70), some_tokens(33), some_tokens(50)};
  for_each_random_model([&](const std::string&, const fs::path& folder) {
    const auto runner = open_model(folder);
    const int vocab = runner->config().vocab_size;
    Status silent;
    std::vector<std::vector<float>> expected;
    const auto keep = [&](const std::unique_ptr<FinalStates>& states) {
      expected = logits_of(*states, sequences, vocab);
    };
    runner->run(sequences, {.final_states = keep}, silent);
    for (const std::vector<int>& layers : {std::vector<int>{}, {runner->config().cache_layers().front()}}) {
      const auto source = open_live(*runner, sequences, {.layers = layers, .to_the_end = true}, silent);
      for (const int layer : source->layer_ids()) (void)source->open(layer);
      CHECK((logits_of(*source->final_states(), sequences, vocab) == expected));
    }
  });
}

TEST_CASE("verify on a model runs it once with exact attention, and finds what a run of its own finds") {
  Sample& sample = Sample::get();
  const TemporaryFolder folder;
  const fs::path set = written(folder, sample.set);
  const std::vector<TokenSequence> texts{sample.held_out.front(), sample.calibration.front()};
  for (const std::vector<int>& layers : {std::vector<int>{}, {1}}) {
    VerifyInputs inputs = model_on(texts);
    inputs.layers = layers;
    VerifyOptions options;
    options.compare = {"bf16"};
    Percentages status;
    const VerifyReport report = verify_set(set, inputs, options, *sample.backend, status);
    REQUIRE(report.methods.size() == 2);
    const std::vector<KvMethod> methods{make_baseline("bf16", {{0, 128}}, {}, 0),
                                        method_of(sample.set, report.windows)};
    const auto alone =
        measure_model(*sample.runner, {.texts = texts}, methods, options.precision, *sample.backend, sample.status);
    VerifyReport of_runs = report;
    for (std::size_t m = 0; m < 2; ++m) of_runs.methods[m].model = alone[m];
    CHECK(to_json(report) == to_json(of_runs));
    CHECK(status.said.size() == 5);  // at the start, and behind each of four layers
    CHECK(std::ranges::is_sorted(status.said));
    CHECK(status.said.back() == 100);
    CHECK(status.left == 0);
  }
}

TEST_CASE("where nothing but exact attention is asked for, no run is left") {
  Sample& sample = Sample::get();
  const ModelData data{.texts = sample.held_out};
  const std::vector<KvMethod> exact{make_baseline("bf16", {{0, 128}}, {}, 0)};
  std::unique_ptr<FinalStates> states;
  Percentages status;
  sample.runner->run(data.texts, {.final_states = [&](auto all) { states = std::move(all); }}, status);
  const auto found =
      measure_model(*sample.runner, data, exact, Precision::kServing, *sample.backend, status, states.get());
  CHECK(found[0].kld_mean == 0);
  CHECK(status.said == std::vector<std::int64_t>{100});
}

}  // namespace oscar
