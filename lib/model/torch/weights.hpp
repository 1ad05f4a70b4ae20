// SPDX-License-Identifier: MIT
// Weights from a checkpoint, whatever they are stored in, as tensors to compute with: matrices in the decoder's type,
// vectors in fp32. Matrices that a checkpoint fuses come apart here, so that what computes sees one naming.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "model/run/decoder.hpp"
#include "model/torch/device.hpp"

namespace oscar {

class Weights : public LoadedWeights {
 public:
  Weights(const ModelConfig& config, const BlockSpec& block) : config_(config), block_(block) {}

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const BlockSpec& block() const { return block_; }
  [[nodiscard]] bool contains(const std::string& name) const { return tensors_.contains(name); }
  /// Returns a weight by its name within the layer, "self_attn.sinks"; of an expert, "gate", "up", "down".
  [[nodiscard]] const at::Tensor& at(const std::string& name) const { return tensors_.at(name); }
  void put(const std::string& name, at::Tensor tensor) { tensors_[name] = std::move(tensor); }

  /// Removes a matrix and its bias: others have its parts.
  void drop(const std::string& part) { tensors_.erase(part + ".weight"), tensors_.erase(part + ".bias"); }

  /// x W^T + b, with the bias if there is one, in the type of x. x (…, in). Where products are prepared, many rows of
  /// float32 are multiplied as sums of two bfloat16 numbers each, which leaves out some 2^-16 of each term.
  [[nodiscard]] at::Tensor linear(const at::Tensor& x, const std::string& part) const;
  /// Keeps of all matrices what the tensor cores of a GPU multiply many rows of float32 with, six bytes a number, where
  /// the device multiplies halves.
  void prepare_products(const Device& device);
  /// Norm over the last dimension as the model has it, in fp32; x itself if `part` is empty.
  [[nodiscard]] at::Tensor exact_norm(const at::Tensor& x, const std::string& part) const;
  /// Norm over the last dimension as the model has it, in the type of x.
  [[nodiscard]] at::Tensor norm(const at::Tensor& x, const std::string& part) const;

 private:
  const ModelConfig& config_;
  const BlockSpec& block_;
  std::map<std::string, at::Tensor> tensors_;
};

/// Weights as this decoder loads them.
[[nodiscard]] inline const Weights& ours(const LoadedWeights& weights) { return static_cast<const Weights&>(weights); }

/// x / sqrt(mean(x^2) + eps) over the last dimension, in fp32.
[[nodiscard]] at::Tensor normalize(const at::Tensor& x, double eps);

/// Where weights come from and go to.
struct WeightRoute {
  const ModelConfig& config;
  const WeightStore& store;
  const Device& device;
};

/// Loads a whole tensor in the device's type, float8 with the scales beside it.
[[nodiscard]] at::Tensor load_tensor(const WeightRoute& route, const std::string& name);
[[nodiscard]] std::unique_ptr<Weights> load_layer_weights(const WeightRoute& route, int layer);
[[nodiscard]] std::vector<std::unique_ptr<LoadedWeights>> load_expert_weights(const WeightRoute& route, int layer,
                                                                              std::span<const int> experts);

/// The scales of the named rows of a float8 matrix (rows, columns), which may be broadcast over them.
[[nodiscard]] at::Tensor scales_of_rows(const at::Tensor& scale, const at::Tensor& rows, const TensorRef& matrix,
                                        const std::string& name);
/// libtorch's name of a type that weights are stored in. Throws DataError for others.
[[nodiscard]] at::ScalarType stored_type(DType dtype);
/// "…q_proj.weight" -> its scales: one for all, one per row, or one per block of rows and columns.
[[nodiscard]] std::string scales_of(const WeightStore& store, const std::string& name);

}  // namespace oscar
