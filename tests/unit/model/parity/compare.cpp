// SPDX-License-Identifier: MIT
// compare: reads lines "MODEL ACTIVATIONS" and answers each with one: "same", "differs …" or "refused …", and warnings;
// for "MODEL -" "read" or "refused …", of config.json alone.
// compare MODEL ACTIVATIONS: runs a checkpoint and compares it with a reference (parity.hpp), with its own attention
// and with that which verify puts in its place, nothing quantised. One line per tensor that differs by more than 1e-4
// of its largest magnitude, and the largest difference; exit status 1 if there is one.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "base/errors.hpp"
#include "kernels/backend.hpp"
#include "model/config/config.hpp"
#include "unit/model/parity.hpp"

namespace {

constexpr double kParity = 1e-4;

int answer_lines() {
  std::string model, activations;
  while (std::cin >> model >> activations) {
    try {
      std::string worst;
      const auto report = [&](const std::string& name, double error) {
        if (!(error < kParity) && worst.empty()) worst = fmt::format("differs {} by {:.2e}", name, error);
      };
      if (activations != "-") oscar::test::compare_with_reference(model, activations, report);
      std::string answer = activations == "-" ? "read" : worst.empty() ? "same" : worst;
      for (const std::string& text : oscar::read_model_config(model).notices) answer += " warning: " + text;
      fmt::print("{}\n", answer);
    } catch (const std::exception& error) {
      fmt::print("refused {}\n", error.what());
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) return answer_lines();
  if (argc != 3) return 2;
  double worst = 0;
  int tensors = 0;
  try {
    const auto report = [&](const std::string& name, double error) {
      if (!(error < kParity)) fmt::print("{} differs by {:.2e}\n", name, error);
      worst = std::max(worst, error);
      ++tensors;
    };
    oscar::test::compare_with_reference(argv[1], argv[2], report);
    const auto backend = oscar::make_cpu_backend();
    oscar::test::compare_with_reference(
        argv[1], argv[2], [&](const std::string& name, double error) { report("attention replaced, " + name, error); },
        [&](const oscar::ScoreRule& rule, const oscar::QkvView& qkv, std::span<float> out) {
          const oscar::SequenceInput input{.qkv = qkv, .precision = oscar::Precision::kExact, .scores = &rule};
          backend->hold(input)->attend({}, {}, out);
        });
  } catch (const oscar::Error& error) {
    fmt::print("{} | {}\n", error.what(), error.where());
    return 1;
  }
  fmt::print("{} tensors, largest relative difference {:.2e}\n", tensors, worst);
  return worst < kParity && tensors > 1 ? 0 : 1;
}
