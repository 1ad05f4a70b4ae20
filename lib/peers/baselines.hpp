// SPDX-License-Identifier: MIT
// The methods that a set is compared with, by name: no method (bf16), those whose rows stand alone, and those that look
// at more than one row (sequence_method.hpp).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codec/kv_method.hpp"

namespace oscar {

/// What a layer needs to know to get a baseline.
struct LayerShape {
  int layer_id = 0;
  int head_dim = 0;
  int num_kv_heads = 1;
  int value_dim = 0;  // as in KvLayer
};

/// Returns the names that make_baseline knows, in the order of reports: bf16, naive, hadamard, hadamard_clip, others
/// whose rows stand alone, then sequence_methods().
[[nodiscard]] const std::vector<std::string>& baseline_names();
/// Returns the windows that a method's authors use; {0, 0} where they say nothing. Throws UsageError that lists the
/// names.
[[nodiscard]] Windows own_windows(const std::string& name);
/// Makes a method for these layers. group_size: of naive and hadamard; others have their own. rope: of keys, if known.
/// Throws UsageError as own_windows.
[[nodiscard]] KvMethod make_baseline(const std::string& name, const std::vector<LayerShape>& layers, Windows windows,
                                     int group_size, std::optional<Rope> rope = {});

/// Returns Sylvester's Hadamard matrices / sqrt(n) on the diagonal, n the largest power of two that divides dim, at
/// most `order`.
[[nodiscard]] MatrixStack hadamard_baseline_matrix(int dim, int order);

}  // namespace oscar
