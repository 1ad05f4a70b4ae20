// SPDX-License-Identifier: MIT
#include "verify/verify.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <memory>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "command_line.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "dump/source.hpp"
#include "measure/peers/baselines.hpp"
#include "model_input.hpp"
#include "options.hpp"
#include "verify/report/report.hpp"
#include "zoo/index.hpp"

namespace oscar {
namespace {

struct VerifyCommand {
  std::vector<std::filesystem::path> stats;
  std::vector<std::string> stock;
  std::filesystem::path set, dump, report;
  AnswerFiles needles{"--needle"}, quotes{"--quote"};
  ModelInput input;
  std::string precision = "serving", windows = "common";
  VerifyOptions options;
  bool record = true, replaces_more = false;
};

bool has_text(const VerifyCommand& c) { return !c.input.tokens.empty() || !c.input.texts.empty(); }

void leave_out_repeated(std::vector<std::string>& names) {
  std::set<std::string> known;
  std::erase_if(names, [&](const std::string& name) { return !known.insert(name).second; });
}

void check_usage(const CLI::App& app, VerifyCommand& c) {
  if (c.set.empty() && c.stock.empty()) {
    throw UsageError("SET is required", "oscar verify",
                     "name a set, in front of options that take lists, or give --stock to look at the caches of "
                     "engines alone");
  }
  if (c.set.empty()) {
    refuse_given(app,
                 {"--dump", "--stats", "--needle", "--quote", "--layers", "--compare", "--for", "--windows", "--sink",
                  "--recent", "--require-held-out", "--max-output-error", "--max-softmax-kl", "--max-ppl-increase",
                  "--max-needles-lost", "--default-limits"},
                 "there is no set that it could be about", "name a set, or leave it out");
    if (c.replaces_more) throw UsageError("there is no set to record in", "--record", "name a set, or leave it out");
  }
  const bool has_probes = c.needles.given() || c.quotes.given(), has_rows = has_text(c) || !c.dump.empty();
  if ((has_text(c) || has_probes) && c.input.model.empty()) {
    throw UsageError("--text, --tokens, --needle and --quote need a model to run", "--model",
                     "give the folder of the checkpoint");
  }
  const char* const remedy = "give --dump, or --model with --text or --tokens, or leave it out";
  if (!has_rows) {
    refuse_given(app,
                 {"--max-tokens", "--sequences", "--layers", "--max-queries", "--max-output-error", "--max-softmax-kl"},
                 "there are no rows", remedy);
  }
  if (!has_text(c)) {
    refuse_given(app, {"--seq-len"}, "there is no text to cut");
    refuse_given(app, {"--stock", "--max-kld", "--max-ppl-increase"}, "the model is not run on text",
                 "give --model with --text or --tokens, or leave it out");
  }
  if (!c.needles.given()) {
    refuse_given(app, {"--max-needles-lost"}, "there are no needles", "give --model with --needle, or leave it out");
  }
  leave_out_repeated(c.stock), leave_out_repeated(c.options.compare);
  if (c.stock == std::vector<std::string>{"all"}) c.stock = stock_caches();
  require_stock_caches(c.stock);
  if (!has_rows && !has_probes) {
    refuse_given(app, {"--windows", "--precision", "--sink", "--recent"}, "nothing is measured", remedy);
    if (c.options.compare != std::vector<std::string>{"none"}) {
      refuse_given(app, {"--compare"}, "nothing is measured", remedy);
    }
  }
  if (!c.report.empty()) require_html_report();
}

ModelData read_model_data(const VerifyCommand& c, const ModelConfig& config, Status& status) {
  ModelData data;
  if (has_text(c)) data.texts = read_sequences(c.input, config, status);
  read_answers(c.needles, config, data.needles, data.answer_lengths);
  read_answers(c.quotes, config, data.quotes, data.quote_lengths);
  return data;
}

void record(const VerifyCommand& c, const VerifyReport& report, Status& status) {
  if (!c.record || report.manifest.is_null()) return;
  try {
    const std::string pinned = why_pinned(c.set);
    const std::string why = pinned.empty() ? record_verification(c.set, report, c.replaces_more)
                                           : pinned + ": verify a copy, and publish that";
    status.notice(why.empty() ? "the summary is recorded in " + (c.set / "manifest.json").string()
                              : "the summary is not recorded: " + why);
  } catch (const Error& error) {
    status.warning(std::string("the summary is not recorded: ") + error.what() + " (" + error.where() + ")");
  }
}

/// "2026-01-31 12:00 UTC"
std::string utc_minute() { return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr))); }

void run(VerifyCommand& c, Context& context) {
  require_report_target(c.report);
  if (c.replaces_more && std::filesystem::exists(c.set) && !std::filesystem::exists(c.set / "manifest.json")) {
    throw UsageError("the files have no manifest that could keep a summary", "--record",
                     "make a set of them with oscar convert, or leave it out");
  }
  c.options.own_windows = c.windows == "own";
  c.options.precision = c.precision == "fp32" ? Precision::kExact : Precision::kServing;
  const auto backend = make_backend(context.common.device, *context.status);
  VerifyInputs inputs;
  inputs.layers = parse_layers(c.input.layers);
  std::unique_ptr<QkvSource> source;
  std::unique_ptr<ModelRunner> runner;
  if (!c.stats.empty()) inputs.statistics = read_statistics(c.stats);
  if (!c.dump.empty()) {
    source =
        open_dump(c.dump, {c.input.limits.max_tokens, c.input.limits.max_sequences, inputs.layers}, *context.status);
  }
  if (!c.input.model.empty()) {
    runner = open_exact_model(c.input, context);
    inputs.model_data = read_model_data(c, runner->config(), *context.status);
  }
  inputs.source = source.get();
  inputs.runner = runner.get();
  VerifyReport report;
  if (!c.set.empty()) report = verify_set(c.set, inputs, c.options, *backend, *context.status);
  if (!c.stock.empty()) plan_stock_caches(report, c.stock, inputs, c.options, *backend, *context.status);
  const Json document = to_json(report);
  validate_json(document, "oscar.verify_report.v1", "the report");
  if (!context.common.json_to_stdout) {
    if (!report.methods.empty()) print(format_table(table_of(report)) + "\n");
    print(summary_of(report));
  }
  emit_json(context, document);
  record(c, report, *context.status);
  if (!c.report.empty()) {
    write_file(c.report, html_report(report, {command_text(context.arguments), utc_minute()}));
    context.status->notice("wrote " + c.report.string());
  }
  if (report.verdict == Verdict::kRejected) context.exit_code = 3;
}

void add_inputs(CLI::App& command, VerifyCommand& c) {
  command.add_option("SET", c.set,
                     "A set, a folder with k_rotation*.pt and v_rotation*.pt, or one .pt file; --stock needs none");
  command.add_option("--dump", c.dump, "Measure attention on this dump")->type_name("DIR")->group("Input");
  command.add_option("--stats", c.stats, "Hold the set against sums that fit --save-stats, or a server, saved")
      ->type_name("FILE")
      ->group("Input");
  add_model_input_options(command, c.input);
  command.remove_option(command.get_option("--model-dtype"));  // models are judged in float32, on the CPU
  command.get_option("--text")->description(
      "UTF-8 text, joined, - is stdin; or .jsonl or .json with documents (\"text\", or a chat: \"messages\", "
      "\"conversations\"); may be pipes and addresses");
  add_answer_options(command, c.needles, "Token ids of needles, one a row (.npy)",
                     "Number of tokens of each needle's answer (.npy)", "Input");
  add_answer_options(command, c.quotes,
                     "Token ids of texts that end with a passage of themselves once more, one a row (.npy): does the "
                     "model repeat it word by word?",
                     "Number of tokens at each row's end that the model is to repeat (.npy)", "More input");
}

void add_settings(CLI::App& command, VerifyCommand& c) {
  VerifyOptions& options = c.options;
  const char *const shown = "Verify", *const more = "More about what is measured";
  const auto add = [&](const char* group, const char* name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->group(group);
  };
  add(shown, "--compare", options.compare, "Methods to set beside it: names (see below), all, or none")
      ->delimiter(',')
      ->capture_default_str();
  add(shown, "--stock", c.stock,
      "Plan caches that engines ship, names (see below) or all: which layers or side to leave in bfloat16, as their "
      "options, for a mean KL of --max-kld [" +
          fmt::format("{}", kStockKld) + "]")
      ->delimiter(',')
      ->type_name("LIST");
  add(more, "--windows", c.windows, "common: the set's for every method; own: those that a method's authors use")
      ->check(CLI::IsMember({"common", "own"}))
      ->capture_default_str();
  add(more, "--precision", c.precision, "serving: bfloat16, as servers round")
      ->check(CLI::IsMember({"serving", "fp32"}))
      ->capture_default_str();
  add(more, "--sink", options.sink, "First tokens kept in bfloat16; default: the set's")->check(kWindow);
  add(more, "--recent", options.recent, "Last tokens kept in bfloat16; default: the set's")->check(kWindow);
  add(more, "--max-queries", options.max_queries,
      "Queries per layer that attention metrics look at, evenly spread; 0 = all")
      ->check(kNonNegative)
      ->capture_default_str();
}

void add_outcome(CLI::App& command, VerifyCommand& c) {
  VerifyThresholds& limits = c.options.thresholds;
  const char *const verdict = "Verdict", *const more = "More about the verdict";
  const auto add_limit = [&](const char* group, const char* name, std::optional<double>& limit, const char* help) {
    command.add_option(name, limit, help)->check(kNonNegative)->group(group);
  };
  command
      .add_option("--for", c.options.readers,
                  "Look only at what these read, and reject if any of it is rejected: vllm, transformers, sglang, "
                  "sglang-v1, llamacpp [all that the set is for]")
      ->delimiter(',')
      ->type_name("LIST")
      ->group(verdict);
  add_limit(verdict, "--max-output-error", limits.max_output_error,
            "Reject above this relative error of attention outputs");
  add_limit(verdict, "--max-kld", limits.max_kld, "Reject above this mean KL of the model's predictions");
  add_limit(more, "--max-ppl-increase", limits.max_ppl_increase, "Reject above this relative increase of perplexity");
  add_limit(more, "--max-needles-lost", limits.max_needles_lost,
            "Reject above this share of lost needles, of those that bf16 finds, and where it finds none");
  add_limit(more, "--max-softmax-kl", limits.max_softmax_kl, "Reject above this mean KL of attention probabilities");
  command
      .add_flag("--require-held-out", c.options.require_held_out,
                "Reject unless the figures are known to come from text that the set was not fitted on")
      ->group(verdict);
  command
      .add_flag("--default-limits,!--no-default-limits", c.options.default_limits,
                "Hold what was measured to the default limits for each part's bits where none is given [on]")
      ->group(more);
  writes(command.add_option("--report", c.report, "Write tables and plots to this HTML file, which needs no network"))
      ->type_name("FILE.html")
      ->group("Output");
  command
      .add_flag("--record,!--no-record", c.record,
                "Keep the summary in the set's manifest [on, unless that keeps figures of more]")
      ->group("Output");
}

}  // namespace

void register_verify(CLI::App& app, Context& context) {
  CLI::App* command =
      app.add_subcommand("verify", "Check a set and measure what it does, beside other methods, for each server");
  command->footer(
      "Methods:\n" + wrapped(joined(peers(), ", ", &Peer::name), 108) + "\nOf these engines ship:\n" +
      wrapped(joined(stock_caches()), 108) +
      "\n\nExamples:\n"
      "  oscar verify set --model Qwen3-8B --text held_out.txt --compare naive,hadamard --report report.html\n"
      "  oscar verify k_rotation.pt --dump dump\n"
      "  oscar verify --stock fp8,q8_0_rot --model Qwen3-8B --text text.txt");
  auto options = std::make_shared<VerifyCommand>();
  add_inputs(*command, *options);
  add_settings(*command, *options);
  add_outcome(*command, *options);
  add_json_option(*command, context);
  command->get_option("--json")->each([command](const std::string& file) {  // or what is missing would not be FILE
    if (!may_be_replaced_by_json(file)) command->get_option("SET")->required(command->count("--stock") == 0);
  });
  command->callback([options, command, &context] {
    options->replaces_more = options->record && command->count("--record") > 0;
    check_usage(*command, *options);
    run(*options, context);
  });
}

}  // namespace oscar
