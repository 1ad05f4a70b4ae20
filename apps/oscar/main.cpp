// SPDX-License-Identifier: MIT
// Parses the command line, runs one command, and turns errors into text and exit codes: the only place that does.
#include <cstdio>
#include <new>

#include <CLI/CLI.hpp>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "base/version.hpp"
#include "commands/commands.hpp"
#include "console.hpp"
#include "context.hpp"

namespace oscar {
namespace {

enum ExitCode { kDone = 0, kFailed = 1, kUsage = 2, kInterrupted = 130 };  // 3 (rejected) comes from verify

void bind(CLI::App& app, Context& context) {
  app.set_version_flag("--version", std::string("oscar ") + kVersion);
  app.set_config("--config", "", "Read options from a TOML file");
  app.add_flag("-q,--quiet", context.common.quiet, "Say nothing but warnings and errors");
  app.add_flag("-v,--verbose", context.common.verbose, "Say more");
  app.add_flag("--progress,!--no-progress", context.common.progress, "Draw progress on a terminal (default on)");
  app.require_subcommand(1);
  app.fallthrough();
  app.parse_complete_callback([&context] {
    context.status = std::make_unique<Console>(
        Console::Options{context.common.quiet, context.common.verbose, context.common.progress});
    set_num_threads(context.common.threads);
  });
}

int run(int argc, char** argv) {
  Context context;
  CLI::App app(
      "oscar makes 2-bit KV caches work: it captures Q/K/V from a model, fits per-layer transforms and clip\n"
      "ratios, proves what they do to attention, and shares them through a zoo.",
      "oscar");
  bind(app, context);
  try {
    app.parse(argc, argv);
    return context.exit_code;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  } catch (const Interrupted&) {
    context.status.reset();
    std::fputs("oscar: interrupted\n", stderr);
    return kInterrupted;
  } catch (const UsageError& error) {
    context.status.reset();
    print_error(error);
    return kUsage;
  } catch (const Error& error) {
    context.status.reset();
    print_error(error);
    return kFailed;
  } catch (const std::bad_alloc&) {
    context.status.reset();
    print_error(Error("out of memory", "", "use fewer tokens (--max-tokens) or a larger machine"));
    return kFailed;
  } catch (const std::exception& error) {
    context.status.reset();
    print_error(Error(error.what(), "", "this is a bug in oscar; please report it with the command line"));
    return kFailed;
  }
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) {
  oscar::install_interrupt_handler();
  return oscar::run(argc, argv);
}
