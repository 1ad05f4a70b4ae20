// SPDX-License-Identifier: MIT
// Parses the command line, runs one command, and turns errors into text and exit codes: the only place that does.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <new>
#include <system_error>

#include <CLI/CLI.hpp>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "base/version.hpp"
#include "command_line.hpp"
#include "commands.hpp"
#include "console.hpp"

namespace oscar {
namespace {

enum ExitCode { kDone = 0, kFailed = 1, kUsage = 2, kInterrupted = 130 };  // 3 (rejected) comes from verify

/// Between parsing and the command's callback: where talk goes and how many threads work.
void start(CLI::App& app, Context& context) {
  context.status = std::make_unique<Console>(
      Console::Options{context.common.quiet, context.common.verbose && !context.common.quiet, context.common.progress});
  context.network.talk_to(*context.status);
  set_num_threads(context.common.threads);
  context.status->detail(std::string("version ") + kVersion + ", " + plural(num_threads(), "thread"));
  tell_settings(app, *context.status);
}

void register_commands(CLI::App& app, Context& context) {
  add_common_options(app, context);
  // Help lists the commands in this order: that of the pipeline.
  register_dump(app, context);
  register_fit(app, context);
  register_verify(app, context);
  register_serve_env(app, context);
  register_serve_check(app, context);
  register_publish(app, context);
  register_pull(app, context);
  register_inspect(app, context);
  register_convert(app, context);
  register_zoo(app, context);
  finish_commands(app);
  app.parse_complete_callback([&app, &context] {
    refuse_to_write_inputs(app);
    require_json_target(context.common.json_file);
    start(app, context);
  });
}

/// Data that did not reach stdout (disk full, for example) must not look like success.
void check_stdout() {
  std::cout.flush();
  if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw IoError("cannot write the result", "stdout", "check where stdout goes");
  }
}

/// Of a command with --resume: what it kept, or that it could have. "" for others.
std::string how_to_go_on(CLI::App& app) {
  const CLI::App& command = active_command(app);
  const CLI::Option* resume = command.get_option_no_throw("--resume");
  if (resume == nullptr || command.get_option("--stats")->count() > 0) return "";
  if (resume->count() == 0)
    return "  try:   --resume, which keeps what is done; the same command then goes on behind it\n";
  const CLI::Option* statistics = command.get_option("--save-stats");
  std::filesystem::path kept = (statistics->count() > 0 ? statistics : command.get_option("--out"))->as<std::string>();
  if (!kept.has_filename()) kept = kept.parent_path();
  kept += ".partial";
  if (!std::filesystem::exists(kept)) return "";
  return "  try:   the same command again, which goes on behind what is kept in " + printable_line(kept.string()) +
         "\n";
}

/// A figure of /proc/self/io in megabytes, 0 where the system keeps none.
double megabytes_of(const std::string& name) {
  std::ifstream file("/proc/self/io");
  std::string label;
  for (std::uint64_t value = 0; file >> label >> value;) {
    if (label == name + ":") return static_cast<double>(value) / 1e6;
  }
  return 0;
}

/// What the process used until now.
void tell_costs(const Context& context) {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  context.status->detail(fmt::format(
      "took {:.2f} s and {:.2f} s of processors, {}, peak memory {:.1f} MB, {:.1f} MB read, {:.1f} MB written",
      seconds_since(context.started), seconds(usage.ru_utime) + seconds(usage.ru_stime),
      plural(num_threads(), "thread"), static_cast<double>(usage.ru_maxrss) / 1e3, megabytes_of("rchar"),
      megabytes_of("wchar")));
}

int fail(Context& context, const Error& error, ExitCode code = kFailed) {
  context.status.reset();  // progress is wiped away
  print_error(error);
  return code;
}

/// What no part of oscar foresees. Threads that cannot start lack memory, too.
Error unforeseen(const std::exception& error) {
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      (system != nullptr && (system->code() == std::errc::resource_unavailable_try_again ||
                             system->code() == std::errc::not_enough_memory))) {
    return {"out of memory", "",
            "use fewer tokens (--max-tokens), raise the limit (ulimit -v) or use a larger machine"};
  }
  return {error.what(), "", "this is a bug in oscar; please report it with the command line"};
}

int run(int argc, char** argv) {
  Context context;
  context.arguments = {argv + 1, argv + argc};
  CLI::App app(
      "oscar makes 2-bit KV caches work: it captures Q/K/V from a model, fits per-layer transforms and clip\n"
      "ratios, proves what they do to attention, and shares them through a zoo.",
      "oscar");
  set_remote_places(&context.network);
  register_commands(app, context);
  try {
    try {
      parse_and_run(app, context.arguments);
      if (context.status) tell_costs(context);
    } catch (const CLI::Success& request) {
      app.exit(request);  // help or version
    }
    check_stdout();
    return context.exit_code;
  } catch (const Interrupted&) {
    context.status.reset();
    std::fputs(("oscar: interrupted\n" + how_to_go_on(app)).c_str(), stderr);
    return kInterrupted;
  } catch (const UsageError& error) {
    return fail(context, error, kUsage);
  } catch (const Error& error) {
    return fail(context, error);
  } catch (const std::filesystem::filesystem_error& error) {
    try {
      throw_io("cannot use this path", error.path1(), error.code().value());
    } catch (const IoError& told) {
      return fail(context, told);
    }
  } catch (const std::exception& error) {
    return fail(context, unforeseen(error));
  }
}

/// Files that are opened later must not stand where the caller closed stdin, stdout or stderr: these fail as closed
/// ones.
void keep_closed() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1) (void)::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) {
  oscar::keep_closed();
  oscar::install_interrupt_handler();
  return oscar::run(argc, argv);
}
