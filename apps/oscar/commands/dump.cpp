// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "base/text.hpp"
#include "commands.hpp"
#include "dump/live_source.hpp"
#include "dump/source.hpp"
#include "model_input.hpp"
#include "options.hpp"

namespace oscar {
namespace {

struct DumpCommand {
  ModelInput input;
  LiveOptions live;
  std::filesystem::path out;
  std::string format = "pt";
  bool force = false;
};

void run(DumpCommand& command, Context& context) {
  command.live.layers = parse_layers(command.input.layers);
  const ModelConfig config = read_model_config(command.input.model);
  std::vector<TokenSequence> sequences = read_sequences(command.input, config, *context.status);
  const std::unique_ptr<ModelRunner> runner = open_input_model(command.input, context);
  const auto source = open_live(*runner, std::move(sequences), command.live, *context.status);
  const DumpSummary summary = write_dump(*source, command.out, command.format, command.force, *context.status);
  const CalibrationData& data = source->calibration();
  context.status->notice(fmt::format("dumped {}, {} in {}, as {}, on {}: {:.1f} MB in {}",
                                     plural(summary.layers, "layer"), plural(summary.tokens, "token"),
                                     plural(data.sequences, "sequence"), name_of(summary.dtype), runner->description(),
                                     static_cast<double>(summary.bytes) / 1e6, command.out.string()));
  emit_json(context, {{"path", command.out.string()},
                      {"model", to_json(source->model())},
                      {"calibration", to_json(data)},
                      {"dtype", name_of(summary.dtype)},
                      {"layers", summary.layers},
                      {"chunks", summary.chunks},
                      {"bytes", summary.bytes}});
}

}  // namespace

void register_dump(CLI::App& app, Context& context) {
  const auto options = std::make_shared<DumpCommand>();
  CLI::App* dump = app.add_subcommand("dump", "Run a model over text and write its post-RoPE Q/K/V");
  dump->footer(
      "Examples:\n"
      "  oscar dump --model Qwen3-8B --text calibration.txt --out dump");
  add_model_input_options(*dump, options->input);
  dump->get_option("--model")->required();
  dump->option_defaults()->group("Output");
  writes(dump->add_option("--out", options->out, "Folder to write"))->type_name("DIR")->required();
  dump->option_defaults()->always_capture_default();
  dump->add_option("--dtype", options->live.dtype, "Type of the tensors; auto = the checkpoint's")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}));
  dump->add_option("--format", options->format, "Files to write")->check(CLI::IsMember({"pt", "h5", "safetensors"}));
  dump->add_flag("--force", options->force, "Replace --out if it exists");
  add_json_option(*dump, context);
  dump->callback([options, &context] { run(*options, context); });
}

}  // namespace oscar
