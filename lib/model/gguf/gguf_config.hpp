// SPDX-License-Identifier: MIT
// The architecture of a model in GGUF as the config.json of the checkpoint that it was made from, and the names of its
// tensors there. The metadata follows ggml's specification of GGUF; what a converter leaves out, such as the scale of
// Gemma's queries, follows what llama.cpp computes with.
#pragma once

#include <optional>
#include <string>

#include "base/json.hpp"
#include "model/gguf/gguf_model.hpp"

namespace oscar {

/// How a tensor differs from the weight that it stands for.
struct GgufWeightName {
  std::string name;       // "model.layers.0.self_attn.q_proj.weight"
  bool turned = false;    // rows of each head alternate between its two halves, as interleaved RoPE wants them
  bool plus_one = false;  // 1 was added
  bool one_row = false;   // a vector that is a matrix of one row there
};

/// Returns a config.json that says what the GGUF file does. Throws DataError: an architecture that is not supported, a
/// member that is missing or of another type.
[[nodiscard]] Json gguf_config(const GgufModel& model);
/// Returns what a tensor is called in a checkpoint; nothing for one that the configuration tells ("rope_freqs.weight")
/// or that is unknown.
[[nodiscard]] std::optional<GgufWeightName> gguf_weight_name(const GgufModel& model, const std::string& tensor);

}  // namespace oscar
