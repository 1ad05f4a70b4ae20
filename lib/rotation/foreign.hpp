// SPDX-License-Identifier: MIT
// Shapes that other programs read and that carry less than a set: OSCAR's branch of llama.cpp (tensors inside a model's
// GGUF), servers of MLA models (a folder with one file per layer).
#pragma once

#include <filesystem>

#include "rotation/rotation_set.hpp"

namespace oscar {

/// blk.<id>.attn_k_rot.weight and blk.<id>.attn_v_rot.weight: F32 [d, d], transposed. A copy of `model` with them, and
/// with the manifest under the key "oscar.manifest". Throws DataError for a set that is not one orthogonal matrix per
/// layer and side, or that does not fit the model.
void write_rotation_gguf(const std::filesystem::path& path, const RotationSet& set, const std::filesystem::path& model);
[[nodiscard]] RotationSet read_rotation_gguf(const std::filesystem::path& path);

/// layer_<id>.pt: a bare matrix, or a dict with rotation, mean, q_rotation. What is cached is one latent row that
/// serves as key and as value, so both sides of a layer are that transform. `path` must exist.
void write_rotation_mla(const std::filesystem::path& folder, const RotationSet& set);
[[nodiscard]] RotationSet read_rotation_mla(const std::filesystem::path& folder);

}  // namespace oscar
