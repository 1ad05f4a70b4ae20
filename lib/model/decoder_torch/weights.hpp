// SPDX-License-Identifier: MIT
// Weights from a checkpoint as fp32 tensors, whatever they are stored in; matrices that a checkpoint fuses come apart
// here, so that what computes sees one naming.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "model/decoder.hpp"

namespace oscar {

class Weights : public LoadedWeights {
 public:
  Weights(const ModelConfig& config, const BlockSpec& block) : config_(config), block_(block) {}

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const BlockSpec& block() const { return block_; }
  [[nodiscard]] bool contains(const std::string& name) const { return tensors_.contains(name); }
  /// By its name within the layer, "self_attn.sinks"; of an expert, "gate", "up", "down".
  [[nodiscard]] const at::Tensor& at(const std::string& name) const { return tensors_.at(name); }
  void put(const std::string& name, at::Tensor tensor) { tensors_[name] = std::move(tensor); }

  /// x W^T + b, with the bias if there is one. x (…, in).
  [[nodiscard]] at::Tensor linear(const at::Tensor& x, const std::string& part) const;
  /// RMS norm over the last dimension; x itself if `part` is empty.
  [[nodiscard]] at::Tensor norm(const at::Tensor& x, const std::string& part) const;

 private:
  const ModelConfig& config_;
  const BlockSpec& block_;
  std::map<std::string, at::Tensor> tensors_;
};

/// x / sqrt(mean(x^2) + eps) over the last dimension.
[[nodiscard]] at::Tensor normalize(const at::Tensor& x, double eps);

/// Rows [begin, end) of a tensor of a float type as fp32.
[[nodiscard]] at::Tensor load_rows(const TensorRef& weight, std::int64_t begin, std::int64_t end);
/// A whole tensor as fp32, float8 with the scales beside it.
[[nodiscard]] at::Tensor load_tensor(const WeightStore& store, const std::string& name);

[[nodiscard]] std::unique_ptr<Weights> load_layer_weights(const ModelConfig& config, const WeightStore& store,
                                                          int layer);
[[nodiscard]] std::unique_ptr<Weights> load_expert_weights(const ModelConfig& config, const WeightStore& store,
                                                           int layer, int expert);

}  // namespace oscar
