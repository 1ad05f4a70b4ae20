// SPDX-License-Identifier: MIT
#include "model/weights/checkpoint.hpp"

#include "model/weights/gguf_checkpoint.hpp"
#include "model/weights/safetensors_checkpoint.hpp"

namespace oscar {

std::unique_ptr<Checkpoint> open_checkpoint(const std::filesystem::path& model) {
  if (is_gguf(model)) return std::make_unique<GgufCheckpoint>(model);
  return std::make_unique<SafetensorsCheckpoint>(model);
}

}  // namespace oscar
