// SPDX-License-Identifier: MIT
// A set that was really fitted on the sample model, and the whole judge on it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "dump/live_source.hpp"
#include "fit/fit.hpp"
#include "fit/take.hpp"
#include "model/tokenizer/tokens.hpp"
#include "set/set_folder.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"
#include "verify/structure/objective.hpp"
#include "verify/verify.hpp"

namespace oscar::test {

inline constexpr int kTokens = 512;

inline std::vector<TokenSequence> sample_text(const char* name, std::size_t sequence) {
  const auto all = read_tokens(data(std::string("golden/qwen3-2m/") + name), {kTokens, 0, 0});
  return {all[sequence]};
}

/// Fitted once for all cases: the fit is not what is tested here.
struct Sample {
  std::unique_ptr<ModelRunner> runner = open_model(data("qwen3-2m"));
  std::unique_ptr<Backend> backend = make_test_backend();
  std::vector<TokenSequence> calibration = sample_text("tokens_calib.npy", 0),
                             held_out = sample_text("tokens_eval.npy", 0);
  Status status;
  RotationPart set = rotations({.recipe = "oscar"});
  [[nodiscard]] Set fitted(const FitOptions& options) { return fitted(options, calibration); }
  [[nodiscard]] Set fitted(FitOptions options, const std::vector<TokenSequence>& texts) {
    const auto source = open_live(*runner, texts, {}, status);
    if (options.recipe != "coded") options.clip = "0.96,0.92";
    options.windows = {16, 64};
    const FitData data{*source, runner.get(), texts};
    return fit(take(data, options, {}, *backend, status), options, *backend, status);
  }
  /// The only part of a set.
  [[nodiscard]] RotationPart rotations(const FitOptions& options) { return fitted(options).rotations.begin()->second; }
  /// A set with a part for each reader, fitted on enough text for its limits.
  [[nodiscard]] const Set& all_parts() {
    static const Set kAll =
        fitted({}, read_tokens(data("golden/qwen3-2m/tokens_calib.npy"), {kTokens, 4 * kTokens, 4}));
    return kAll;
  }
  static Sample& get() {
    static Sample sample;
    return sample;
  }
};

/// The same with a permutation in place of each rotation, which is what "pbr" names: nothing is spread over channels.
inline RotationPart without_rotation(RotationPart set) {
  for (LayerRotation& layer : set.layers) {
    for (SideTransform* side : {&layer.key, &layer.value}) {
      const auto permutation = *verify::constant_rotation("pbr", static_cast<std::size_t>(side->rotation.dim));
      for (int m = 0; m < side->rotation.count; ++m) std::ranges::copy(permutation, side->rotation[m].begin());
    }
  }
  set.key_objective = "qqt_pbr", set.value_objective = "sst_pbr";
  return set;
}

struct Verified {
  VerifyReport report;
  std::string reasons, warnings;
};

/// A few methods: what others do is tested elsewhere.
inline VerifyOptions usual_options() {
  VerifyOptions options;
  options.compare = {"bf16", "naive", "hadamard", "hadamard_clip"};
  return options;
}

inline Verified verified(const fs::path& path, const VerifyInputs& inputs = {},
                         const VerifyOptions& options = usual_options()) {
  Sample& sample = Sample::get();
  Verified v{verify_set(path, inputs, options, *sample.backend, sample.status), "", ""};
  validate_json(to_json(v.report), "oscar.verify_report.v1", "report");
  for (const std::string& reason : v.report.reasons) v.reasons += reason + "\n";
  for (const std::string& warning : v.report.warnings) v.warnings += warning + "\n";
  return v;
}

inline VerifyInputs model_on(const std::vector<TokenSequence>& texts) {
  VerifyInputs inputs;
  inputs.runner = Sample::get().runner.get();
  inputs.model_data.texts = texts;
  return inputs;
}

inline void check_contains(const std::string& text, const std::string& part) {
  CHECK_MESSAGE(text.find(part) != std::string::npos, text);
}

inline fs::path written(const TemporaryFolder& folder, const Set& set) {
  write_set(folder / "set", set, {}, true);
  return folder / "set";
}
/// As the only part of a set.
inline fs::path written(const TemporaryFolder& folder, const RotationPart& part) {
  return written(folder, Set{.model = part.model,
                             .calibration = part.calibration,
                             .windows = part.windows,
                             .recipe = {{"name", "oscar"}},
                             .rotations = {{kRotationsName, part}},
                             .readers = {"vllm", "sglang-v1"}});
}
inline fs::path written(const TemporaryFolder& folder, const CodedPart& part) {
  return written(folder, Set{.model = part.model,
                             .calibration = part.calibration,
                             .windows = part.windows,
                             .recipe = {{"name", "coded"}},
                             .coded = part,
                             .readers = {"vllm"}});
}

}  // namespace oscar::test
