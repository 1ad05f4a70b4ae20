// SPDX-License-Identifier: MIT
#include "verify/inspect/inspect.hpp"

#include "commands/commands.hpp"
#include "console.hpp"

namespace oscar {
namespace {

void run(const std::filesystem::path& path, const Context& context) {
  const Inspection found = inspect(path);
  if (!context.common.json_to_stdout) print(to_text(found, path));
  emit_json(context, to_json(found, path));
  require_sound(found, path);
}

}  // namespace

void register_inspect(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("inspect", "Say what a file or folder is and whether it is sound");
  auto path = std::make_shared<std::filesystem::path>();
  command
      ->add_option("PATH", *path,
                   "A dump, set, model folder or zoo, or a .pt, .h5, .safetensors, .npy, .gguf or .json file")
      ->required();
  add_json_option(*command, context);
  command->callback([path, &context] { run(*path, context); });
}

}  // namespace oscar
