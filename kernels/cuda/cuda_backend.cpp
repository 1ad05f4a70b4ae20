// SPDX-License-Identifier: MIT
#include <memory>
#include <mutex>

#include "kernels/cuda/check.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/plugin.hpp"
#include "kernels/host_sequence.hpp"

namespace oscar {
namespace {

/// One call at a time: the GPU is busy with one anyway, and library handles belong to one thread at a time.
class CudaBackend : public Backend {
 public:
  explicit CudaBackend(int ordinal) : context_(ordinal) {}

  [[nodiscard]] std::string description() const override { return context_.description(); }

  void accumulate_grams(HeadsView x, MatrixStack& grams) override {
    const auto turn = take_turn();
    cuda::accumulate_grams(context_, x, {}, grams);
  }
  void accumulate_weighted_grams(HeadsView k, const MatrixStack& forms, HeadsView v, MatrixStack& grams,
                                 std::span<double> weights) override {
    const auto turn = take_turn();
    std::vector<double> energies(static_cast<std::size_t>(k.num_tokens) * static_cast<std::size_t>(k.num_heads));
    cuda::row_energies(context_, k, forms, energies);
    cuda::accumulate_grams(context_, v, energies, grams);
    for (std::size_t i = 0; i < energies.size(); ++i) weights[i % weights.size()] += energies[i];
  }
  void accumulate_output_grams(const QkvView& qkv, std::span<const SequenceRange> sequences,
                               MatrixStack& grams) override {
    const auto turn = take_turn();
    cuda::accumulate_output_grams(context_, qkv, sequences, grams);
  }
  void accumulate_residual_grams(HeadsView x, const MatrixStack& rotation, const RowCodec& codec,
                                 MatrixStack& grams) override {
    const auto turn = take_turn();
    cuda::accumulate_residual_grams(context_, x, rotation, codec, grams);
  }
  [[nodiscard]] std::vector<Eigenpairs> eigh(const MatrixStack& symmetric) override {
    const auto turn = take_turn();
    return cuda::eigh(context_, symmetric);
  }
  void rotate(HeadsView x, const MatrixStack& rotated_from_native, Precision precision,
              std::span<float> rows) override {
    const auto turn = take_turn();
    cuda::rotate(context_, x, rotated_from_native, precision, rows);
  }
  void quantize(std::span<const float> rows, int head_dim, const RowCodec& codec, Precision precision,
                std::span<float> decoded, QuantizedRows* codes) override {
    const auto turn = take_turn();
    cuda::quantize(rows, head_dim, codec, precision, decoded, codes);
  }
  [[nodiscard]] std::unique_ptr<MixedSequence> hold(const SequenceInput& input) override {
    return hold_on_host(
        input, {.rotate =
                    [this](HeadsView x, const MatrixStack& matrices, Precision precision, std::span<float> rows) {
                      const auto turn = take_turn();
                      cuda::rotate(context_, x, matrices, precision, rows);
                    },
                .quantize =
                    [this](std::span<const float> rows, int dim, const RowCodec& codec, Precision precision,
                           std::span<float> decoded) {
                      const auto turn = take_turn();
                      cuda::quantize(rows, dim, codec, precision, decoded, nullptr);
                    },
                .attend =
                    [this](const MixedAttention& mixed, std::span<float> out) {
                      const auto turn = take_turn();
                      cuda::attend(context_, mixed, out);
                    },
                .compare =
                    [this](const QkvView& exact, const MixedAttention& mixed) {
                      const auto turn = take_turn();
                      return cuda::compare_attention(context_, exact, mixed);
                    }});
  }

 private:
  [[nodiscard]] std::unique_lock<std::mutex> take_turn() {
    std::unique_lock lock(mutex_);
    context_.activate();
    return lock;
  }

  std::mutex mutex_;
  cuda::Context context_;
};

class Plugin : public CudaPlugin {
 public:
  [[nodiscard]] int device_count() const override {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    (void)cudaGetLastError();
    return 0;
  }
  [[nodiscard]] std::unique_ptr<Backend> make_backend(int ordinal, Status&) const override {
    return std::make_unique<CudaBackend>(ordinal);
  }
};

}  // namespace
}  // namespace oscar

const oscar::CudaPlugin* oscar_cuda_plugin() {
  static const oscar::Plugin plugin;
  return &plugin;
}
