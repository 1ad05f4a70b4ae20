// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "base/errors.hpp"
#include "commands/commands.hpp"
#include "console.hpp"

namespace oscar {
namespace {

struct BenchCommand {
  std::string what;
  DecodeCase shape;
  std::string heads = "32,8", scale_dtype = "float32";
  Windows windows{64, 256};
};

/// What README and servers compare: one long sequence, many, and one whose time is mostly latency.
std::vector<DecodeCase> usual_cases(const DecodeCase& shape) {
  std::vector<DecodeCase> cases;
  for (const auto& [batch, tokens] : {std::pair{1, 100'000}, std::pair{32, 32'768}, std::pair{1, 32'768}}) {
    cases.push_back(shape);
    cases.back().batch = batch;
    cases.back().tokens = tokens;
  }
  return cases;
}

std::pair<int, int> heads_from(const std::string& text) {
  int query = 0, kv = 0;
  char end = 0;
  if (std::sscanf(text.c_str(), "%d,%d%c", &query, &kv, &end) != 2 || kv < 1 || query < kv || query % kv != 0) {
    throw UsageError("\"" + text + "\" is not a number of query heads and one of KV heads that divides it", "--heads",
                     "give two numbers like 32,8");
  }
  return {query, kv};
}

std::string format_results(const std::vector<DecodeCase>& cases, const DecodeTimings& timings) {
  std::vector<std::vector<std::string>> rows{{"batch", "tokens", "us", "us at copy rate", "TB/s", "of copy rate"}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const DecodeTiming& timing = timings.cases[i];
    const double rate = timing.bytes / timing.microseconds * 1e6;
    rows.push_back(
        {std::to_string(cases[i].batch), std::to_string(cases[i].tokens), fmt::format("{:.2f}", timing.microseconds),
         fmt::format("{:.2f}", timing.bytes / timings.copy_bytes_per_second * 1e6), fmt::format("{:.2f}", rate / 1e12),
         fmt::format("{:.1f} %", 100 * rate / timings.copy_bytes_per_second)});
  }
  return format_table(rows);
}

Json to_json(const std::vector<DecodeCase>& cases, const DecodeTimings& timings, const BenchCommand& command,
             const std::string& device) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const DecodeCase& c = cases[i];
    const DecodeTiming& timing = timings.cases[i];
    rows.push_back(
        {{"batch", c.batch},
         {"tokens", c.tokens},
         {"microseconds", timing.microseconds},
         {"bytes", timing.bytes},
         {"fraction_of_copy_rate", timing.bytes / timing.microseconds * 1e6 / timings.copy_bytes_per_second}});
  }
  const DecodeCase& shape = command.shape;
  return {{"bench", "attention"},
          {"device", device},
          {"copy_bytes_per_second", timings.copy_bytes_per_second},
          {"num_q_heads", shape.num_q_heads},
          {"num_kv_heads", shape.num_kv_heads},
          {"head_dim", shape.head_dim},
          {"group_size", shape.group_size},
          {"scale_dtype", command.scale_dtype},
          {"windows", {{"sink", command.windows.sink}, {"recent", command.windows.recent}}},
          {"cases", std::move(rows)}};
}

void run(BenchCommand command, const Context& context) {
  DecodeCase& shape = command.shape;
  std::tie(shape.num_q_heads, shape.num_kv_heads) = heads_from(command.heads);
  shape.scale_dtype = dtype_from_name(command.scale_dtype);
  if (!is_activation_dtype(shape.scale_dtype)) {
    throw UsageError("scales are float32, float16 or bfloat16", "--scale-dtype", "give one of these");
  }
  if (shape.group_size == 0) shape.group_size = shape.head_dim;
  shape.name = fmt::format("heads {}, head_dim {}, groups of {}", command.heads, shape.head_dim, shape.group_size);
  const std::vector<DecodeCase> cases = shape.tokens > 0 ? std::vector{shape} : usual_cases(shape);
  const std::unique_ptr<Backend> backend = make_backend(context.common.device, *context.status);
  const DecodeTimings timings = backend->time_decode(cases, command.windows);
  if (!context.common.json_to_stdout) {
    print(fmt::format("INT2 decode attention, one layer, {}, windows {} + {}\n{}, copies at {:.2f} TB/s\n", shape.name,
                      command.windows.sink, command.windows.recent, backend->description(),
                      timings.copy_bytes_per_second / 1e12) +
          format_results(cases, timings));
  }
  emit_json(context, to_json(cases, timings, command, backend->description()));
}

}  // namespace

void register_bench(CLI::App& app, Context& context) {
  CLI::App* bench = app.add_subcommand("bench", "Time the INT2 attention kernel on this machine's GPU");
  auto command = std::make_shared<BenchCommand>();
  DecodeCase& shape = command->shape;
  shape.group_size = 0;
  bench->add_option("WHAT", command->what, "attention: a decode step of one layer")
      ->required()
      ->check(CLI::IsMember({"attention"}));
  const auto option = [&](const char* name, auto& value, const char* help) {
    return bench->add_option(name, value, help)->capture_default_str()->group("Shape");
  };
  option("--batch", shape.batch, "Sequences; with --tokens")->check(CLI::Range(1, 4096));
  option("--tokens", shape.tokens,
         "Tokens of each sequence; 0 = batch x tokens of 1 x 100000, 32 x 32768 and 1 x 32768")
      ->check(CLI::Range(0, 16'000'000));
  option("--heads", command->heads, "Query heads and KV heads");
  option("--head-dim", shape.head_dim, "64, 128 or 256")->check(CLI::IsMember({64, 128, 256}));
  option("--group-size", shape.group_size, "Channels per scale and zero point; 0 = the whole head")
      ->check(kNonNegative);
  option("--scale-dtype", command->scale_dtype, "float32, float16 or bfloat16");
  option("--sink", command->windows.sink, "First tokens in bfloat16")->check(kNonNegative);
  option("--recent", command->windows.recent, "Last tokens in bfloat16")->check(kNonNegative);
  add_json_option(*bench, context);
  add_backend_options(*bench, context);
  bench->callback([command, &context] { run(*command, context); });
}

}  // namespace oscar
