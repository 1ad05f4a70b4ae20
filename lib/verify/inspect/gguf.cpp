// SPDX-License-Identifier: MIT
#include "tensor/gguf.hpp"

#include <algorithm>

#include "verify/inspect/kinds.hpp"

namespace oscar {

Inspection inspect_gguf(const std::filesystem::path& path) {
  const GgufFile file(path);
  const auto count = [&](const char* end) {
    return std::ranges::count_if(file.tensors(), [&](const GgufTensor& tensor) { return tensor.name.ends_with(end); });
  };
  return {"GGUF file",
          {{"version", file.version()},
           {"architecture", file.text("general.architecture").value_or("unknown")},
           {"tensors", file.tensors().size()},
           {"metadata_entries", file.entries().size()},
           {"key_rotations", count("attn_k_rot.weight")},
           {"value_rotations", count("attn_v_rot.weight")}},
          {}};
}

}  // namespace oscar
