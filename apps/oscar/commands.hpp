// SPDX-License-Identifier: MIT
// One function per command, in pipeline order. Each only binds options and sets a callback; the callback opens files
// and calls the library.
#pragma once

#include <CLI/CLI.hpp>

#include "options.hpp"

namespace oscar {

void register_dump(CLI::App& app, Context& context);
void register_fit(CLI::App& app, Context& context);
void register_verify(CLI::App& app, Context& context);
void register_serve_env(CLI::App& app, Context& context);
void register_serve_check(CLI::App& app, Context& context);
void register_publish(CLI::App& app, Context& context);
void register_pull(CLI::App& app, Context& context);
void register_inspect(CLI::App& app, Context& context);
void register_zoo(CLI::App& app, Context& context);
void register_convert(CLI::App& app, Context& context);

}  // namespace oscar
