// SPDX-License-Identifier: MIT
#include <memory>

#include "kernels/cuda/context.hpp"
#include "kernels/cuda/held_sequence.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/plugin.hpp"

namespace oscar {
namespace {

/// One layer uploads while others compute; more would only share the same wires.
constexpr int kConcurrentLayers = 3;
/// One waits for the host while the other computes.
constexpr int kConcurrentClipFits = 2;
/// So few that most are fitted while later ones are read.
constexpr int kLayersPerBatch = 6;

class CudaBackend : public Backend {
 public:
  CudaBackend(int ordinal, Status& status)
      : device_(ordinal, status),
        ingest_(device_),
        lanes_(device_, ingest_, kConcurrentLayers + kConcurrentClipFits),
        solver_(device_, ingest_, 1) {}
  ~CudaBackend() override { device_.tell_memory(); }

  [[nodiscard]] std::string description() const override { return device_.description(); }
  [[nodiscard]] WorkShape work_shape() const override {
    return {.concurrent_layers = kConcurrentLayers,
            .layers_per_batch = kLayersPerBatch,
            .concurrent_clip_fits = kConcurrentClipFits,
            .bytes_per_call = std::int64_t{1} << 30};
  }

  void accumulate_grams(std::span<const HeadsView> parts, MatrixStack& grams) override {
    lanes_.run([&](const Context& context) { cuda::accumulate_grams(context, parts, grams); });
  }
  void accumulate_weighted_grams(std::span<const HeadsView> keys, const MatrixStack& forms,
                                 std::span<const HeadsView> values, MatrixStack& grams,
                                 std::span<double> weights) override {
    lanes_.run(
        [&](const Context& context) { cuda::accumulate_weighted_grams(context, keys, forms, values, grams, weights); });
  }
  void accumulate_fisher_sums(const QkvView& qkv, std::span<const SequenceRange> sequences, Windows windows,
                              FisherSums& sums) override {
    lanes_.run([&](const Context& context) { cuda::accumulate_fisher_sums(context, qkv, sequences, windows, sums); });
  }
  [[nodiscard]] std::vector<Eigenpairs> eigh(const MatrixStack& symmetric) override {
    return solver_.run([&](const Context& context) { return cuda::eigh(context, symmetric); });
  }
  void quantize(std::span<const float> rows, int head_dim, const HistoryCodec& codec, Precision precision,
                std::span<float> decoded) override {
    lanes_.run([&](const Context& context) { cuda::quantize(context, rows, head_dim, codec, precision, decoded); });
  }
  [[nodiscard]] std::unique_ptr<MixedSequence> hold(const SequenceInput& input) override {
    return cuda::hold(lanes_, input);
  }

 private:
  using Context = cuda::Context;

  cuda::Device device_;
  cuda::Ingest ingest_;
  cuda::Lanes lanes_;
  cuda::Lanes solver_;  // one lane for all eigenproblems, since each lane that meets some keeps a handle of cuSOLVER
};

class Plugin : public CudaPlugin {
 public:
  [[nodiscard]] int device_count() const override {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    (void)cudaGetLastError();
    return 0;
  }
  [[nodiscard]] std::unique_ptr<Backend> make_backend(int ordinal, Status& status) const override {
    return std::make_unique<CudaBackend>(ordinal, status);
  }
};

}  // namespace
}  // namespace oscar

const oscar::CudaPlugin* oscar_cuda_plugin() {
  static const oscar::Plugin plugin;
  return &plugin;
}
