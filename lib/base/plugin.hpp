// SPDX-License-Identifier: MIT
// Shared objects that are opened on first use, so that start-up does not pay for libtorch. A plug-in lies beside the
// binary (build tree) or in ../lib/oscar or ../lib/<multiarch>/oscar (installed) and exports one C function that
// returns a pointer to its interface.
#pragma once

#include <string>

namespace oscar {

/// Address of `symbol` in oscar_<name>.so; the library stays open. Throws BackendUnavailable with the loader's reason
/// and `remedy`: what to do where the plug-in, or a library that it needs, is missing.
[[nodiscard]] void* plugin_symbol(
    const std::string& name, const std::string& symbol,
    const std::string& remedy = "run scripts/setup.sh and build again, or install oscar again");

/// plugin_symbol() of a plug-in that needs libtorch, whose C++ interface is another in every version: one that a
/// plug-in was not built with is never called. It finds libtorch beside itself, or in the torch package that a wheel of
/// oscar lies beside. Throws BackendUnavailable if libtorch is not there or of another version (the first two numbers
/// count), with both versions and what to do.
[[nodiscard]] void* torch_plugin_symbol(const std::string& name, const std::string& symbol);

}  // namespace oscar
