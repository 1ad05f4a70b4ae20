// SPDX-License-Identifier: MIT
#include "model/torch/embedding.hpp"

#include <ATen/TensorOperators.h>

#include "model/weights/layout.hpp"

namespace oscar {
namespace {

/// Columns [begin, begin + count) of the tokens' rows, (T, count), in the device's type. The table is of a float type.
at::Tensor token_rows(const WeightRoute& route, const char* table, std::span<const std::int32_t> tokens,
                      std::int64_t begin, std::int64_t count) {
  const TensorRef& stored = route.store.at(table);
  const at::ScalarType type = scalar_type(stored.dtype);
  const auto size = static_cast<std::int64_t>(c10::elementSize(type)), rows = static_cast<std::int64_t>(tokens.size());
  const at::Tensor bytes = route.device.host_bytes(rows * count * size);
  route.store.read_rows(stored, tokens, static_cast<std::size_t>(begin * size), static_cast<std::size_t>(count * size),
                        static_cast<std::byte*>(bytes.data_ptr()));
  return bytes.view(type).view({rows, count}).to(route.device.place()).to(route.device.dtype());
}

}  // namespace

at::Tensor embedded(const WeightRoute& route, std::span<const std::int32_t> tokens) {
  const at::Tensor x = token_rows(route, kEmbeddingName, tokens, 0, route.config.hidden_size);
  return route.config.embedding_scale == 1 ? x : x * route.config.embedding_scale;
}

at::Tensor left_behind(const WeightRoute& route, const Weights& layer, const at::Tensor& x, const HiddenRows& hidden) {
  const std::int64_t dim = layer.block().input_dim;
  if (dim == 0) return scaled(layer, x);
  const at::Tensor own = token_rows(route, kLayerInputsName, hidden.tokens, layer.block().input_index * dim, dim);
  return scaled(layer, with_layer_input(layer, x, hidden.embedding.to(route.device.place()), own));
}

}  // namespace oscar
