// SPDX-License-Identifier: MIT
#include "model/output_projection.hpp"

#include "base/errors.hpp"
#include "model/checkpoint.hpp"
#include "model/layout.hpp"

namespace oscar {

Tensor read_output_projection(const std::filesystem::path& model, const ModelConfig& config, int layer) {
  const Checkpoint checkpoint(model);
  const std::string name = layer_weight_name(layer, "self_attn.o_proj");
  Tensor weight = checkpoint.at(name).copy();
  const std::vector<std::int64_t> per_head{config.hidden_size, config.num_attention_heads, config.head_dim};
  if (weight.shape != std::vector<std::int64_t>{per_head[0], per_head[1] * per_head[2]}) {
    throw DataError(name + " has another shape than config.json says", model.string(), "download the checkpoint again");
  }
  weight.shape = per_head;
  return weight;
}

}  // namespace oscar
