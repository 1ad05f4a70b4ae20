// SPDX-License-Identifier: MIT
// What a server says of its own rotations, and where OSCAR's SGLang keeps those that it made itself: where it does not
// find its rotation files, it calibrates itself at its start and serves that, without a word to anybody who asks it for
// text. Visible of that are its settings, if it was started with SGLANG_EXPOSE_OWN_ENV_VARS=1, and its files, on the
// machine where it ran.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rotation/rotation_set.hpp"
#include "rotation/serve_env.hpp"
#include "serve/served_answers.hpp"

namespace oscar::serve {

/// Asks for the settings (GET /server_info). Why they are not those of the set whose files these are: whole clauses.
/// Nothing where the server does not tell its settings, or names files that are not on this machine.
[[nodiscard]] std::vector<std::string> why_other_settings(const AskServer& ask, const ServedFiles& files);

struct OwnCalibration {
  std::filesystem::path folder;
  RotationSet set;
};
/// Those of servers on this machine ($HF_HOME/oscar-rotations) that have the layers and shapes of `set`; what cannot be
/// read is left out.
[[nodiscard]] std::vector<OwnCalibration> own_calibrations(const RotationSet& set);

}  // namespace oscar::serve
