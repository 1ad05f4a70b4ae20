// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "kernels/backend.hpp"
#include "kernels/cpu/ops.hpp"

namespace oscar {
namespace {

class CpuBackend : public Backend {
 public:
  [[nodiscard]] std::string description() const override { return fmt::format("cpu, {} threads", num_threads()); }

  void accumulate_grams(std::span<const HeadsView> parts, MatrixStack& grams) override {
    for (const HeadsView& x : parts) cpu::accumulate_grams(x, grams);
  }
  void accumulate_weighted_grams(std::span<const HeadsView> keys, const MatrixStack& forms,
                                 std::span<const HeadsView> values, MatrixStack& grams,
                                 std::span<double> weights) override {
    OSCAR_CHECK(keys.size() == values.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      cpu::accumulate_weighted_grams(keys[i], forms, values[i], grams, weights);
    }
  }
  void accumulate_fisher_sums(const QkvView& qkv, std::span<const SequenceRange> sequences, Windows windows,
                              FisherSums& sums) override {
    cpu::accumulate_fisher_sums(qkv, sequences, windows, sums);
  }
  [[nodiscard]] std::vector<Eigenpairs> eigh(const MatrixStack& symmetric) override { return cpu::eigh(symmetric); }
  void quantize(std::span<const float> rows, int head_dim, const HistoryCodec& codec, Precision precision,
                std::span<float> decoded) override {
    cpu::quantize(rows, head_dim, codec, precision, decoded);
  }
  [[nodiscard]] std::unique_ptr<MixedSequence> hold(const SequenceInput& input) override { return cpu::hold(input); }
  [[nodiscard]] std::vector<std::vector<std::vector<AttentionErrors>>> compare(
      std::span<const ComparedSequence> sequences) override {
    return cpu::compare(sequences);
  }
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace oscar
