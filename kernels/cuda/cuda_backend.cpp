// SPDX-License-Identifier: MIT
#include <memory>
#include <mutex>

#include "kernels/cuda/check.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/plugin.hpp"

namespace oscar {
namespace {

/// One call at a time: the GPU is busy with one anyway, and library handles belong to one thread at a time.
class CudaBackend : public Backend {
 public:
  explicit CudaBackend(int ordinal) : context_(ordinal) {}

  [[nodiscard]] std::string description() const override { return context_.description(); }

  void accumulate_grams(HeadsView x, std::span<const double> weights, MatrixStack& grams) override {
    const auto turn = take_turn();
    cuda::accumulate_grams(context_, x, weights, grams);
  }
  void row_energies(HeadsView x, const MatrixStack& forms, std::span<double> energies) override {
    const auto turn = take_turn();
    cuda::row_energies(context_, x, forms, energies);
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
  void attend(const MixedAttention& mixed, std::span<float> out) override {
    const auto turn = take_turn();
    cuda::attend(context_, mixed, out);
  }
  [[nodiscard]] std::vector<AttentionErrors> compare_attention(const QkvView& exact,
                                                               const MixedAttention& mixed) override {
    const auto turn = take_turn();
    return cuda::compare_attention(context_, exact, mixed);
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
  [[nodiscard]] std::unique_ptr<Backend> make_backend(int ordinal) const override {
    return std::make_unique<CudaBackend>(ordinal);
  }
};

}  // namespace
}  // namespace oscar

const oscar::CudaPlugin* oscar_cuda_plugin() {
  static const oscar::Plugin plugin;
  return &plugin;
}
