// SPDX-License-Identifier: MIT
// One side of a set as a .pt file, float32: format version 1 (one matrix per layer), 2 (one per KV head), or 3 (with a
// read side or a mean of its own).
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "rotation/formats.hpp"
#include "tensor/pt.hpp"

namespace oscar {

/// What version 3 says of itself, and what it calls the read side: "q_rotation" or "o_rotation".
struct PtSide {
  const char* read_name;
  int num_heads;  // of the model, for version 2; 0: not known
  PtDict transform, calibration;
};

/// Returns what a .pt file of these layers holds, in the order given; eigenvalues that are not known are left out.
/// version: 0 = the lowest that holds them. Throws DataError, with `where`, if that version cannot hold them.
[[nodiscard]] PtValue rotation_pt(const std::string& objective,
                                  const std::vector<std::pair<int, const SideTransform*>>& layers, int version,
                                  const PtSide& side_info, const std::string& where);

}  // namespace oscar
