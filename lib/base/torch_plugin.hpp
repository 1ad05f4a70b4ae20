// SPDX-License-Identifier: MIT
// Plug-ins that need libtorch, whose C++ interface is another in every version: one that a plug-in was not built with
// is never called. A plug-in finds libtorch beside itself, or in the torch package that a wheel of oscar lies beside.
#pragma once

#include <string>

namespace oscar {

/// plugin_symbol() of such a plug-in. Throws BackendUnavailable if libtorch is not there or of another version (the
/// first two numbers count), with both versions and what to do.
[[nodiscard]] void* torch_plugin_symbol(const std::string& name, const std::string& symbol);

}  // namespace oscar
