// SPDX-License-Identifier: MIT
// The names that rotations go by. They come from files of others and go into file names and into the environment of
// servers, so they are taken from this list or refused. And which key file and which value file of a folder of others
// belong together: such a folder may hold a shared pair (k_rotation_qqt_r_h_pbr.pt, v_rotation_sst_r_h_pbr.pt) beside
// one with a matrix per head (k_rotation_perhead.pt, …).
#pragma once

#include <string>
#include <vector>

namespace oscar {

/// "plain", "pbr", "br", "br_h128", "r_h", "h_pbr", "h_r_pbr", "h_pbr_r", "r_h_pbr": rotation/compute_kv_rotation.py
/// of OSCAR says what they are.
[[nodiscard]] const std::vector<std::string>& composition_names();

/// `name` as it is: "<objective>_<composition>" with qqt, ktk, fisher, sst or vtv as objective, "stretch_" before it
/// where it applies; "mixed_<composition>"; "hadamard"; "uresidual"; "unknown", which stands for names of fitters whose
/// formulas we do not know, too. Throws DataError for any other; where: the file that has it.
[[nodiscard]] std::string known_objective(std::string name, const std::string& where);

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
