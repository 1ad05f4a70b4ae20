// SPDX-License-Identifier: MIT
// compare [--replace-attention]: reads lines "MODEL ACTIVATIONS", runs the checkpoint and compares it with a reference
// (parity.hpp); with the option also with the attention that verify puts in place of the model's own, nothing
// quantised. Answers each with a line: "same in N tensors, to E", "differs NAME by E" where a tensor differs by more
// than 1e-4 of its largest magnitude, or "refused …", and warnings; for "MODEL -" "read HASHES" or "refused …", of what
// tells the architecture, and of weights if there are some.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>

#include "base/errors.hpp"
#include "kernels/backend.hpp"
#include "model/weights/checkpoint.hpp"
#include "unit/model/parity.hpp"

namespace {

constexpr double kParity = 1e-4;

std::string answer(const std::string& model, const std::string& activations, bool replace) {
  std::string different;
  double worst = 0;
  int tensors = 0;
  const auto report = [&](const std::string& name, double error) {
    if (!(error < kParity) && different.empty()) different = fmt::format("differs {} by {:.2e}", name, error);
    worst = std::max(worst, error);
    ++tensors;
  };
  if (activations != "-") oscar::test::compare_with_reference(model, activations, report);
  if (activations != "-" && replace) {
    const auto backend = oscar::make_cpu_backend();
    oscar::test::compare_with_reference(
        model, activations,
        [&](const std::string& name, double error) { report("with attention replaced, " + name, error); },
        [&](const oscar::ScoreRule& rule, const oscar::QkvView& qkv, std::span<float> out) {
          const oscar::SequenceInput input{.qkv = qkv, .precision = oscar::Precision::kExact, .scores = &rule};
          backend->hold(input)->attend({}, {}, out);
        });
  }
  const oscar::ModelConfig config = oscar::read_model_config(model);
  const bool weights = model.ends_with(".gguf") || std::filesystem::exists(model + "/model.safetensors");
  std::string text = activations == "-"
                         ? "read " + config.identity.config_sha256 +
                               (weights ? " " + oscar::weights_sha256(config, *oscar::open_checkpoint(model)) : "")
                     : !different.empty() ? different
                                          : fmt::format("same in {} tensors, to {:.2e}", tensors, worst);
  for (const std::string& notice : config.notices) text += " warning: " + notice;
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const bool replace = argc == 2 && argv[1] == std::string("--replace-attention");
  if (argc != (replace ? 2 : 1)) return 2;
  std::string model, activations;
  while (std::cin >> model >> activations) {
    try {
      fmt::print("{}\n", answer(model, activations, replace));
    } catch (const std::exception& error) {
      fmt::print("refused {}\n", error.what());
    }
    std::fflush(stdout);
  }
  return 0;
}
