// SPDX-License-Identifier: MIT
// What the set says of where it comes from, against what it is verified with.
#include <algorithm>

#include "verify/structure/checks.hpp"
#include "verify/structure/objective.hpp"

namespace oscar::verify {
namespace {

void check_config(const Subject& subject, const Expectation& expected, std::vector<Check>& checks) {
  const std::string& fitted = subject.set.model.config_sha256;
  const std::string& measured = expected.model.config_sha256;
  if (fitted.empty() || measured.empty()) {
    checks.push_back({"model_identity",
                      {},
                      "",
                      {},
                      {},
                      {},
                      fitted.empty() ? "the set does not say which model it was fitted on"
                                     : "nothing says which model the set is meant for: give --model or --stats"});
    return;
  }
  const bool same = fitted == measured;
  checks.push_back({"model_identity",
                    {},
                    "",
                    {},
                    {},
                    same,
                    same ? "" : "fitted on another model (" + subject.set.model.id + "): config.json differs"});
}

/// Another commit may hold other weights, or only another README: that cannot be decided here.
void check_revision(const Subject& subject, const Expectation& expected, std::vector<Check>& checks) {
  const std::string& fitted = subject.set.model.revision;
  const std::string& measured = expected.model.revision;
  if (fitted.empty() || measured.empty()) return;
  const bool same = fitted == measured;
  checks.push_back({"model_revision",
                    {},
                    "",
                    {},
                    {},
                    same ? std::optional(true) : std::nullopt,
                    same ? ""
                         : "fitted on commit " + fitted + " of the model, which is now " + measured +
                               ": the set is stale if the weights changed"});
}

void check_tokens(const Subject& subject, std::vector<Check>& checks) {
  if (!subject.ours || subject.sides.front().layers.empty()) return;
  const auto reads_data = [](const SubjectSide& side) {
    return std::any_of(side.layers.begin(), side.layers.end(),
                       [&](const auto& layer) { return !has_constant_rotation(side, layer.second); });
  };
  if (std::none_of(subject.sides.begin(), subject.sides.end(), reads_data)) return;
  const std::int64_t tokens = subject.set.calibration.tokens;
  const std::int64_t needed =
      std::int64_t{kMinCalibrationTokensPerDim} * subject.sides.front().layers.front().second.rotation.dim;
  std::optional<bool> ok = tokens >= needed;
  std::string message = *ok ? "" : "fitted on too few tokens: directions are those of chance; fit on more text";
  if (tokens == 0) ok = std::nullopt, message = "the set does not say how many tokens it was fitted on";
  checks.push_back(
      {"calibration_tokens", {}, "", static_cast<double>(tokens), static_cast<double>(needed), ok, message});
}

}  // namespace

void check_provenance(const Subject& subject, const Expectation& expected, std::vector<Check>& checks) {
  check_config(subject, expected, checks);
  check_revision(subject, expected, checks);
  check_tokens(subject, checks);
}

}  // namespace oscar::verify
