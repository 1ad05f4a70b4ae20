// SPDX-License-Identifier: MIT
// Which text says something about a set: text that it was not fitted on, and of which enough was quantised.
#include <doctest/doctest.h>

#include <numeric>

#include "dump/source.hpp"
#include "model/tokenizer/tokens.hpp"
#include "unit/verify/sample.hpp"
#include "verify/verdict/verdict.hpp"

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

using namespace test;

std::vector<TokenSequence> held_out(std::size_t sequences, int tokens) {
  std::vector<TokenSequence> all = read_tokens(data("golden/qwen3-2m/tokens_eval.npy"), {tokens, 0, 0});
  all.resize(sequences);
  return all;
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

TEST_CASE("keys outside the windows are counted by hand") {
  // Queries 0 to 5 read 1 to 6 keys; of these one sink and two recent ones are exact.
  KeysRead keys = keys_read(0, 6, 1, {1, 2});
  CHECK(keys.all == 21);
  CHECK(keys.quantised == 1 + 2 + 3);
  CHECK(keys.share() == doctest::Approx(6.0 / 21));
  // The last query and every third before it: 1, 4 of six, 0, 3 of four.
  const std::vector<std::int64_t> lengths{6, 4, 0};
  keys = keys_of_attention(lengths, 3, {1, 2});
  CHECK(keys.all == 3 + 6 + 1 + 4);
  CHECK(keys.quantised == 0 + 3 + 0 + 1);
  // A text of four tokens has three predictions; the answer "b." of a needle of five has one that counts.
  const ModelData data{{{1, 2, 3, 4}}, {{1, 2, 3, 4, 5}}, {2}};
  CHECK(keys_of_texts(data, {0, 1}).quantised == 0 + 1 + 2);
  CHECK(keys_of_needles(data, {0, 1}).all == 3);
  CHECK(keys_of_needles(data, {0, 1}).quantised == 2);
  const ModelData quoted{.quotes = data.needles, .quote_lengths = data.answer_lengths};  // here both count
  CHECK(keys_of_quotes(quoted, {0, 1}).all == 3 + 4);
  CHECK(KeysRead{}.share() == 0);
  CHECK(keys_read(0, 100, 1, {0, 0}).share() == 1);
  CHECK(query_stride(5000, 2048) == 3);
  CHECK(query_stride(0, 0) == 1);
}

TEST_CASE("texts, needles and dumps that the windows hold are refused before anything runs") {
  Sample& sample = Sample::get();
  const TemporaryFolder folder;
  const fs::path path = written(folder, sample.set);
  VerifyOptions options = usual_options();
  options.thresholds.max_kld = 0.01;
  CHECK_ERROR(verified(path, model_on(held_out(1, 80)), options), DataError, "0.0 % are quantised");
  CHECK_ERROR(verified(path, model_on(held_out(1, 100)), options), DataError, "give sequences of 121 tokens or more");
  options.recent = 1 << 20;
  CHECK_ERROR(verified(path, model_on(sample.held_out), options), DataError, "figures of the model would say nothing");

  VerifyInputs inputs = model_on({});
  inputs.model_data.needles = held_out(1, 80);
  inputs.model_data.answer_lengths = {4};
  CHECK_ERROR(verified(path, inputs), DataError, "figures of needles would say nothing");

  write_dump(*open_live(*sample.runner, held_out(2, 80), {}, sample.status), folder / "dump", "pt", false,
             sample.status);
  const auto dump = open_dump(folder / "dump", {}, sample.status);
  VerifyInputs of_dump;
  of_dump.source = dump.get();
  CHECK_ERROR(verified(path, of_dump), DataError, "figures of attention would say nothing");
}

TEST_CASE("the report says how many keys were quantised") {
  const TemporaryFolder folder;
  const Verified v = verified(written(folder, Sample::get().set), model_on(Sample::get().held_out));
  // 512 queries of four layers, windows of 16 and 64: 432 queries read 1 to 432 quantised keys.
  const Json &attention = v.report.data.at("attention"), &model = v.report.data.at("model");
  CHECK(attention.at("keys_read") == 4 * (512 * 513 / 2));
  CHECK(attention.at("keys_quantised") == 4 * (432 * 433 / 2));
  CHECK(attention.at("quantised_share").get<double>() == doctest::Approx(0.7122).epsilon(1e-4));
  CHECK(model.at("keys_quantised") == 431 * 432 / 2);
  CHECK_FALSE(model.contains("needles_quantised_share"));
  CHECK(v.warnings.find("of 4 layers") == std::string::npos);

  VerifyInputs inputs = model_on(Sample::get().held_out);
  inputs.layers = {2};
  check_contains(verified(folder / "set", inputs).warnings, "attention is measured in 1 of 4 layers");
}

TEST_CASE("from the smallest share that is measured on, default limits still know a set without a rotation") {
  RotationPart set = without_rotation(Sample::get().set);
  for (LayerRotation& layer : set.layers) layer.key.clip_ratio = layer.value.clip_ratio = 0;
  const TemporaryFolder folder;
  const fs::path path = written(folder, set);
  VerifyOptions options;
  options.compare = {"none"};
  options.sink = 64, options.recent = 256;
  const Verified enough = verified(path, model_on(held_out(4, 481)), options);
  CHECK(enough.report.data.at("model").at("quantised_share").get<double>() == doctest::Approx(0.112).epsilon(0.01));
  CHECK(enough.report.verdict == Verdict::kRejected);
  CHECK_ERROR(verified(path, model_on(held_out(4, 460)), options), DataError, "would say nothing");
}

}  // namespace oscar
