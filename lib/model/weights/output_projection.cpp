// SPDX-License-Identifier: MIT
#include "model/weights/output_projection.hpp"

#include "base/errors.hpp"
#include "model/weights/checkpoint.hpp"
#include "model/weights/layout.hpp"

namespace oscar {

Tensor read_output_projection(const std::filesystem::path& model, const ModelConfig& config, int layer) {
  const MixerSpec& mixer = config.blocks[static_cast<std::size_t>(layer)].mixer;
  if (mixer.kind != MixerKind::kAttention || mixer.output_gate) {
    throw DataError("attention outputs of layer " + std::to_string(layer) + " do not meet one matrix", model.string(),
                    "choose another --value-objective");
  }
  const std::unique_ptr<const Checkpoint> checkpoint = open_checkpoint(model);
  const std::string name = layer_weight_name(layer, "self_attn.o_proj.weight");
  Tensor weight = checkpoint->load(name);
  const std::vector<std::int64_t> per_head{config.hidden_size, config.num_attention_heads, config.head_dim};
  if (weight.shape != std::vector<std::int64_t>{per_head[0], per_head[1] * per_head[2]}) {
    throw DataError(name + " has another shape than config.json says", model.string(), "download the checkpoint again");
  }
  if (!is_activation_dtype(weight.dtype)) {
    throw DataError(name + " is of " + std::string(name_of(weight.dtype)), model.string(),
                    "choose another --value-objective, or a checkpoint in bfloat16, float16 or float32");
  }
  weight.shape = per_head;
  return weight;
}

}  // namespace oscar
