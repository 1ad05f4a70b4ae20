// SPDX-License-Identifier: MIT
// Which key file and which value file of a folder of others belong together: such a folder may hold a shared pair
// (k_rotation_qqt_r_h_pbr.pt, v_rotation_sst_r_h_pbr.pt) beside one with a matrix per head (k_rotation_perhead.pt, …).
#pragma once

#include <string>
#include <vector>

namespace oscar {

struct RotationPair {
  std::string name;  // what stands behind "k_rotation_" in its key file; "plain" for k_rotation.pt
  std::string key_file, value_file;
};

/// Returns the pairs of key and value files, sorted by name. Files pair by the same name, then by the same composition
/// (qqt_r_h_pbr and sst_r_h_pbr), then the last two that are left.
[[nodiscard]] std::vector<RotationPair> rotation_pairs(const std::vector<std::string>& files);

/// The pair of this name; of an empty one the only pair. Throws DataError if there is no pair, UsageError that names
/// the choices if none or several are meant.
[[nodiscard]] RotationPair choose_pair(const std::vector<std::string>& files, const std::string& wanted,
                                       const std::string& where);

}  // namespace oscar
