// SPDX-License-Identifier: MIT
// Product codebooks of OSCAR's SGLang (FutureMLS-Lab/OSCAR at 00b29b8; SGLANG_OSCAR_PQ_K_CODEBOOK): a row, rotated, is
// cut into `n_sub` pieces, and each is stored as the number of its nearest centroid, a byte.
//   codebooks_per_layer  (layers, n_sub, centroids, sub_dim)
//   codebooks_stage1     the same
//   codebooks_stage2     the same, for what the first stage leaves; two numbers share a byte if there are up to 16
//                        centroids and n_sub is even
//   codebooks            a list of n_sub tensors (centroids, sub_dim), for all layers
#pragma once

#include <string>
#include <vector>

#include "peers/product_code.hpp"
#include "tensor/pt.hpp"

namespace oscar {

struct CodebookFile {
  /// One codebook for all layers.
  bool shared = false;
  /// The ids of the layers, in the order of the codebooks; empty: shared.
  std::vector<std::int64_t> layers;
  /// One a layer, or one alone.
  std::vector<ProductCodebook> codebooks;
  /// What a server would refuse; empty: the codebooks can be used.
  std::vector<std::string> problems;

  [[nodiscard]] const std::vector<ProductStage>& stages() const { return codebooks.front().stages; }
  [[nodiscard]] int head_dim() const { return stages().front().pieces * stages().front().piece_dim; }
};

/// Whether an archive has such codebooks.
[[nodiscard]] bool is_codebook_file(const PtValue& archive);
/// Throws DataError for what is none of the layouts above. where: the file.
[[nodiscard]] CodebookFile read_codebook_file(const PtValue& archive, const std::string& where);
/// What the file says of itself under this name ("tensor", "rotation", "model"); empty: nothing.
[[nodiscard]] std::string said_in(const PtValue& archive, const char* name);

}  // namespace oscar
