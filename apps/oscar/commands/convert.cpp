// SPDX-License-Identifier: MIT
#include "set/convert.hpp"

#include "base/status.hpp"
#include "base/text.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "inspect/inspect.hpp"
#include "options.hpp"

namespace oscar {
namespace {

struct ConvertCommand {
  std::filesystem::path in, out;
  std::string to, formats;
  ConvertOptions options;
};

void run(ConvertCommand& command, Context& context) {
  if (!command.to.empty()) command.options.to = set_format_from_name(command.to);
  if (!command.formats.empty()) command.options.formats = parse_rotation_formats(command.formats);
  const ConvertResult result = convert_set(command.in, command.out, command.options);
  for (const std::string& lost : result.lost) {
    context.status->notice("left out of " + command.out.string() + ": " + lost);
  }
  context.status->notice("wrote " + plural(result.layers, "layer") + " from " + std::string(name_of(result.from)) +
                         " as " + std::string(name_of(result.to)) + ": " + command.out.string());
  emit_json(context, {{"path", command.out.string()},
                      {"from", name_of(result.from)},
                      {"to", name_of(result.to)},
                      {"parts", result.parts},
                      {"layers", result.layers},
                      {"lost", result.lost}});
}

void run(const std::filesystem::path& path, const Context& context) {
  const Inspection found = inspect(path);
  if (!context.common.json_to_stdout) print(to_text(found, path));
  emit_json(context, to_json(found, path));
  require_sound(found, path);
}

}  // namespace

void register_convert(CLI::App& app, Context& context) {
  const auto command = std::make_shared<ConvertCommand>();
  CLI::App* convert = app.add_subcommand("convert", "Rewrite a set for another reader, bit for bit");
  convert->footer(
      "Examples:\n"
      "  oscar convert set set.safetensors\n"
      "  oscar convert theirs set --to set");
  convert
      ->add_option("IN", command->in,
                   "A set, a folder of .pt files (also MLA: layer_<id>.pt), or a .h5, .safetensors or .gguf "
                   "file")
      ->required();
  writes(convert->add_option("OUT", command->out, "File or folder to write"))->required();
  convert
      ->add_option(
          "--to", command->to,
          "Shape of OUT: set, pt, h5, safetensors, gguf or mla; default: by OUT's extension, a folder is a set")
      ->check(CLI::IsMember(set_format_names()));
  convert
      ->add_option("--part", command->options.part,
                   "The part of a set to take: rotations, with_means, or coded for another set; default: all for "
                   "another set, else rotations, or the only one")
      ->type_name("NAME");
  convert->add_option("--into", command->options.model, "Model whose copy gets the rotations, for .gguf")
      ->type_name("MODEL.gguf");
  convert->add_option("--pair", command->options.pair,
                      "Of a folder with several pairs of .pt files, which: what follows k_rotation_ in the name of its "
                      "key file (perhead); default: the only pair");
  convert
      ->add_option("--pt-version", command->options.pt_version,
                   "With --to pt: 1, 2 or 3; 0, the default: the lowest that holds it")
      ->check(CLI::Range(0, 3));
  convert->add_option("--format", command->formats,
                      "With a set as output, files of its rotations: pt, h5 or both, the default");
  convert->add_flag("--force", command->options.replace, "Replace OUT if it exists");
  add_json_option(*convert, context);
  convert->callback([command, &context] { run(*command, context); });
}

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
