// SPDX-License-Identifier: MIT
#include "verify/structure/expectation.hpp"

#include <algorithm>
#include <array>

#include "base/errors.hpp"

namespace oscar::verify {
namespace {

void require_same(const ModelIdentity& data, const char* what, const char* option, const Expectation& expected) {
  const std::string &theirs = data.config_sha256, &measured = expected.model.config_sha256;
  if (theirs.empty() || measured.empty() || theirs == measured) return;
  throw DataError(std::string(what) + " of another model (" + data.id + ") than " + expected.origin, option,
                  "give data of the same model, or verify with it alone");
}

/// Numbers that both know.
bool other_shape(const ModelIdentity& a, const ModelIdentity& b) {
  constexpr std::array kSizes{&ModelIdentity::num_layers, &ModelIdentity::num_attention_heads,
                              &ModelIdentity::num_key_value_heads, &ModelIdentity::head_dim};
  return std::any_of(kSizes.begin(), kSizes.end(),
                     [&](auto size) { return a.*size > 0 && b.*size > 0 && a.*size != b.*size; });
}

bool failed(const std::vector<Check>& checks, const char* name) {
  return std::any_of(checks.begin(), checks.end(),
                     [&](const Check& check) { return check.name == name && check.ok == false; });
}

}  // namespace

Expectation expectation(const Subject& subject, const VerifyInputs& inputs) {
  Expectation expected;
  expected.from_outside = inputs.runner != nullptr || inputs.source != nullptr || inputs.statistics.has_value();
  if (inputs.runner != nullptr) {
    expected.model = inputs.runner->config().identity;
    expected.origin = "the model's config.json";
  } else if (inputs.source != nullptr && inputs.source->model().num_layers > 0) {
    expected.model = inputs.source->model();
    expected.origin = "the data's manifest";
  } else if (inputs.statistics) {
    expected.model = inputs.statistics->model;
    expected.origin = "the statistics' manifest";
  } else if (subject.ours) {
    expected.model = subject.set.model;
    expected.model.config_sha256.clear();  // a set cannot vouch for itself
    expected.model.revision.clear();
    expected.origin = "the set's manifest";
  }
  if (inputs.source != nullptr) {
    expected.data_layers = inputs.source->layer_ids();
  } else if (inputs.statistics) {
    for (const LayerStatistics& layer : inputs.statistics->layers) expected.data_layers.push_back(layer.layer_id);
  }
  return expected;
}

void require_same_model(const VerifyInputs& inputs, const Expectation& expected) {
  if (inputs.statistics) require_same(inputs.statistics->model, "the statistics are", "--stats", expected);
  if (inputs.source != nullptr) require_same(inputs.source->model(), "the dump is", "--dump", expected);
}

bool is_of_other_model(const Subject& subject, const Expectation& expected, const std::vector<Check>& checks) {
  if (!expected.from_outside) return false;
  const ModelIdentity& own = subject.set.model;
  if (failed(checks, "model_identity") || other_shape(own, expected.model)) return true;
  return own.config_sha256.empty() && (failed(checks, "shape") || failed(checks, "layer_coverage"));
}

}  // namespace oscar::verify
