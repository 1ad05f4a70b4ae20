// SPDX-License-Identifier: MIT
#include "set/serve_env.hpp"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "commands/commands.hpp"
#include "console.hpp"
#include "set/set_folder.hpp"

namespace oscar {
namespace {

struct ServeEnvCommand {
  std::filesystem::path set;
  std::string reader;
  bool allow_rejected = false;
  std::vector<std::string> server;
};

/// What the caller of this program had made of these signals, which main changes for itself.
const auto kInherited = [] {
  std::map<int, struct sigaction> found;
  for (const int signal : {SIGINT, SIGTERM, SIGXFSZ, SIGPIPE}) ::sigaction(signal, nullptr, &found[signal]);
  return found;
}();

/// Takes the place of this process.
[[noreturn]] void start(const std::vector<std::string>& server) {
  std::vector<char*> arguments;
  for (const std::string& argument : server) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  for (const auto& [signal, action] : kInherited) ::sigaction(signal, &action, nullptr);
  ::execvp(arguments.front(), arguments.data());
  throw IoError("cannot start the server: " + std::string(std::strerror(errno)), server.front(),
                "check the command behind --");
}

void run(const ServeEnvCommand& command, const Context& context) {
  const Set set = read_set(command.set);
  if (set.manifest.is_null()) {
    throw UsageError("only a set with a manifest says how it is served", command.set.string(),
                     "make one of bare files: oscar convert IN OUT --to set");
  }
  const ServerSettings settings = server_settings(set, command.reader, command.set);
  const std::string used = settings.server + " reads the part " + settings.part + ", " + claim_of(settings.verdict);
  if (settings.verdict == Verdict::kRejected && !command.allow_rejected) {
    throw DataError(used, command.set.string(), "fit another set, or pass --allow-rejected");
  }
  context.status->notice(used);
  Json document{{"path", command.set.string()},  {"server", settings.server},
                {"part", settings.part},         {"verdict", name_of(settings.verdict)},
                {"environment", Json::object()}, {"arguments", settings.arguments},
                {"notes", settings.notes}};
  std::string text, arguments;
  for (const auto& [name, value] : settings.environment) {
    document["environment"][name] = value;
    text += "export " + name + "=" + shell_quoted(value) + "\n";
    if (!command.server.empty()) ::setenv(name.c_str(), value.c_str(), 1);
  }
  for (const std::string& each : settings.arguments) arguments += " " + each;
  for (const std::string& note : settings.notes) context.status->notice(note);
  context.status->notice("the server's command line needs:" + arguments);
  if (command.server.empty() && !context.common.json_to_stdout) print(text);
  emit_json(context, document);
  if (!command.server.empty()) start(command.server);
}

}  // namespace

void register_serve_env(CLI::App& app, Context& context) {
  const auto options = std::make_shared<ServeEnvCommand>();
  CLI::App* command =
      app.add_subcommand("serve-env", "Check a set and print the environment that a server needs for it");
  command->footer(
      "Examples:\n"
      "  oscar serve-env set\n"
      "  oscar serve-env set -- python -m sglang.launch_server --model-path Qwen3-8B --kv-cache-dtype int2");
  command->add_option("SET", options->set, "Folder of the set")->required();
  command->add_option("SERVER", options->server, "Start this command with that environment, instead of printing it");
  command
      ->add_option("--for", options->reader,
                   "The server: sglang, sglang-v1 or llamacpp; default: the first of these that the set has a part for")
      ->check(CLI::IsMember(reader_names(/*rotations_only=*/true)));
  command->add_flag("--allow-rejected", options->allow_rejected,
                    "Serve a part that verify has rejected for this server");
  add_json_option(*command, context);
  command->callback([options, &context] { run(*options, context); });
}

}  // namespace oscar
