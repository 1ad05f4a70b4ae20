// SPDX-License-Identifier: MIT
// Product codes as OSCAR's SGLang stores rows (FutureMLS-Lab/OSCAR at 00b29b8, QuantKernel/oscar_pq_kv.py): a rotated
// row is cut into pieces, and each is the number of its nearest centroid; further stages code what the ones before
// leave (RVQ). There is no scale, no clip, and one codebook serves all heads of a layer.
#pragma once

#include <span>
#include <vector>

#include "peers/sequence_method.hpp"

namespace oscar {

/// The centroids of one stage: (pieces, centroids, piece_dim), rounded to float16, as servers hold them.
struct ProductStage {
  int pieces = 0, centroids = 0, piece_dim = 0;
  std::vector<float> values;

  /// The centroid of `piece` with the least squared distance in fp64; the first of several.
  [[nodiscard]] std::span<const float> nearest(int piece, std::span<const float> x) const;
  /// Bits of a value: a byte for each piece of the first stage; in later ones two numbers of up to 16 share a byte
  /// where pieces pair up.
  [[nodiscard]] double bits(bool first) const;
};

/// One or two stages of the same pieces.
struct ProductCodebook {
  std::vector<ProductStage> stages;

  /// row (pieces * piece_dim) becomes what a reader of its codes gets. kServing: what a stage leaves is bfloat16.
  void take_nearest(std::span<float> row, Precision precision) const;
  /// Bits of a value; the codebook, which all tokens share, is not counted.
  [[nodiscard]] double bits() const;
};

/// Rows as `transform` stores them, through the codes and back. The transform has one matrix, or one per head; codes
/// are found on the host, whatever the backend.
[[nodiscard]] SideMethod product_coded(ProductCodebook book, Transform transform);

}  // namespace oscar
