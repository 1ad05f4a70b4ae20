// SPDX-License-Identifier: MIT
// The names that rotations go by. They come from files of others and go into file names and into the environment of
// servers, so they are taken from this list or refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oscar {

/// "plain", "pbr", "br", "br_h128", "r_h", "h_pbr", "h_r_pbr", "h_pbr_r", "r_h_pbr": rotation/compute_kv_rotation.py
/// of OSCAR says what they are.
[[nodiscard]] const std::vector<std::string>& composition_names();

/// "<objective>_<composition>" with qqt, ktk, fisher, sst or vtv as objective, "stretch_" before it
/// where it applies; "mixed_<composition>"; "hadamard"; "uresidual"; "unknown".
[[nodiscard]] bool is_objective(std::string_view name);

/// `name` as it is. Throws DataError if is_objective() does not know it; where: the file that has it.
[[nodiscard]] std::string known_objective(std::string name, const std::string& where);

}  // namespace oscar
