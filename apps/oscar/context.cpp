// SPDX-License-Identifier: MIT
#include "context.hpp"

#include <charconv>

#include "base/errors.hpp"
#include "console.hpp"
#include "outputs.hpp"

namespace oscar {
// Configuration files and the environment reach the options of every command; only those of the one that runs may
// count.
void add_backend_options(CLI::App& command, Context& context) {
  const auto set_device = [&command, &context](const std::string& device) {
    if (command.parsed()) context.common.device = device;
  };
  const auto set_threads = [&command, &context](int threads) {
    if (command.parsed()) context.common.threads = threads;
  };
  command.add_option_function<std::string>("--device", set_device, "Where to compute: auto, cpu, cuda or cuda:N")
      ->type_name("DEVICE")
      ->default_str(context.common.device)
      ->group("Backend");
  command.add_option_function<int>("--threads", set_threads, "CPU threads; 0 = one per core that it may use")
      ->check(CLI::Range(0, 4096))
      ->default_str(std::to_string(context.common.threads))
      ->group("Backend");
}

CLI::Option* allow_address(CLI::Option* option) {
  const auto settle = [](std::string text) { return is_remote(text) ? remote_places().settle(text).string() : text; };
  return option->transform(CLI::Validator(
      [settle](std::string& text) {
        text = settle(text);
        return std::string();
      },
      ""));
}

void add_timeout_option(CLI::App& command, double& seconds) {
  command.add_option("--timeout", seconds, "Give up on a server that sends (next to) nothing for so many seconds")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str()
      ->group("Transfer");
}

void add_json_option(CLI::App& command, Context& context) {
  const auto set_json = [&command, &context](const std::string& file) {
    if (!command.parsed()) return;
    context.common.json_to_stdout = file.empty() || file == "-";
    context.common.json_file = context.common.json_to_stdout ? "" : file;
  };
  writes(command.add_option_function<std::string>("--json", set_json, "Machine-readable result to FILE, or to stdout"))
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->group("Output");
}

void emit_json(const Context& context, const Json& document) {
  if (!context.common.json_file.empty()) write_json(context.common.json_file, document);
  if (!context.common.json_to_stdout) return;
  print(json_text(document));
}

std::vector<int> parse_layers(const std::string& text) {
  std::vector<int> layers;
  const char* cursor = text.data();
  const char* const end = cursor + text.size();
  const auto fail = [&] {
    throw UsageError("cannot read the layer list \"" + text + "\"", "--layers", "write it like 0-3,7");
  };
  const auto number = [&] {
    int value = -1;
    const auto [stop, error] = std::from_chars(cursor, end, value);
    if (error != std::errc() || value < 0) fail();
    cursor = stop;
    return value;
  };
  while (cursor < end) {
    const int first = number();
    int last = first;
    if (cursor < end && *cursor == '-') {
      ++cursor;
      last = number();
    }
    if (last < first || last - first > 100000) fail();
    for (int layer = first; layer <= last; ++layer) layers.push_back(layer);
    if (cursor < end && (*cursor++ != ',' || cursor == end)) fail();
  }
  return layers;
}

}  // namespace oscar
