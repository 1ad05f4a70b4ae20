// SPDX-License-Identifier: MIT
// The matrices of a set as named tensors, the same in every format that has names: layers/<id>/{key,value}/{rotation,
// q_rotation|o_rotation, mean, eigenvalues, covariance, query_covariance}, float32, with '/' or another separator.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "rotation/rotation_set.hpp"

namespace oscar {

[[nodiscard]] std::vector<std::pair<std::string, Tensor>> tensors_of(const RotationSet& set, char separator);

/// Text as a tensor of uint8.
[[nodiscard]] Tensor bytes_tensor(const std::string& text);

/// Where tensors come from.
struct TensorLookup {
  std::function<bool(const std::string&)> has;
  std::function<Tensor(const std::string&)> read;  // throws DataError if it is missing
};

/// Throws DataError if a matrix, a mean or an eigenvalue is not finite as float32, which is how sets are written, or if
/// a rotation has entries beyond 1e6, which none that keeps scores has.
void require_finite(const RotationSet& set, const std::string& where);

/// Fills the matrices of the layers that `set` lists (by layer_id). Throws DataError if a rotation is missing or what
/// belongs to it does not fit; `where` names the file.
void fill_layers(RotationSet& set, const TensorLookup& tensors, char separator, const std::string& where);

}  // namespace oscar
