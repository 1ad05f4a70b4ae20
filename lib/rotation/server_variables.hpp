// SPDX-License-Identifier: MIT
// What a server is told of a set, for each server that a set can be fitted for: environment, command line, and what a
// user must know of the trees that read them. No text of the set is in it but names from rotation/objective.hpp.
#pragma once

#include <string>
#include <vector>

#include "rotation/serve_env.hpp"

namespace oscar {

/// A line of the environment. A file's value is its name in the set's folder; "." is the folder.
struct ServerVariable {
  std::string name, value;
  bool is_file = false;
};

/// Whether the set is for OSCAR's branch of llama.cpp; else it is for OSCAR's SGLang.
[[nodiscard]] bool for_llama_cpp(const RotationSet& set);

/// Why the server cannot serve the set; empty if it can.
[[nodiscard]] std::string server_obstacle(const RotationSet& set);

/// files: what lies in the set's folder for servers. Means and latent rotations are named if they are among them.
[[nodiscard]] std::vector<ServerVariable> server_variables(const RotationSet& set, const ServedFiles& files);

/// Whole sentences: which tree the variables were read from, and what an older one does not know.
[[nodiscard]] std::vector<std::string> server_notes(const RotationSet& set, const ServedFiles& files);

}  // namespace oscar
