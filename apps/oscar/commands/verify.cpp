// SPDX-License-Identifier: MIT
#include "verify/verify.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <memory>

#include "answer_files.hpp"
#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "command_text.hpp"
#include "commands/commands.hpp"
#include "commands/verdict_options.hpp"
#include "console.hpp"
#include "dump/folder_source.hpp"
#include "help.hpp"
#include "model_input.hpp"
#include "outputs.hpp"
#include "verify/methods.hpp"
#include "verify/report/html_report.hpp"
#include "verify/report/record.hpp"
#include "verify/report/table.hpp"
#include "zoo/index.hpp"

namespace oscar {
namespace {

struct VerifyCommand {
  std::vector<std::filesystem::path> stats;
  std::filesystem::path rotations, dump, report;
  AnswerFiles needles{"--needle"}, quotes{"--quote"};
  ModelInput input;
  std::string precision = "serving", windows = "common", bf16_layers;
  VerifyOptions options;
  bool record = true;
};

bool has_text(const VerifyCommand& c) { return !c.input.tokens.empty() || !c.input.texts.empty(); }

void check_usage(const VerifyCommand& c) {
  const bool has_probes = c.needles.given() || c.quotes.given();
  if ((has_text(c) || has_probes) && c.input.model.empty()) {
    throw UsageError("--text, --tokens, --needle and --quote need a model to run", "--model",
                     "give the folder of the checkpoint");
  }
  if (c.windows == "none" && (c.options.sink || c.options.recent)) {
    throw UsageError("without windows, none has a size", "--windows none", "leave out --sink and --recent");
  }
  if (c.options.product_codes.codebooks.empty() && !c.options.product_codes.rotations.empty()) {
    throw UsageError("rotations of codebooks, and no codebooks", "--pq-rotations", "add --pq-codebook FILE");
  }
  check_usage(c.needles);
  check_usage(c.quotes);
  if (!c.report.empty()) require_html_report();
}

verify::ModelData read_model_data(const VerifyCommand& c, const ModelConfig& config, Status& status) {
  verify::ModelData data;
  if (has_text(c)) data.texts = read_sequences(c.input, config, status);
  read_answers(c.needles, config, data.needles, data.answer_lengths);
  read_answers(c.quotes, config, data.quotes, data.quote_lengths);
  return data;
}

/// Structure checks alone do not replace figures that were measured before, unless they failed.
bool worth_recording(const VerifyCommand& c, const VerifyReport& report) {
  if (!c.record || !report.rotation_set.value("format", "").starts_with("oscar.rotation_set.")) return false;
  return report.verdict != Verdict::kNotMeasured || !report.rotation_set.value("verified_before", false);
}

/// Empty if the summary may go into the manifest.
std::string why_unrecorded(const VerifyCommand& c, const VerifyReport& report) {
  if (!report.bf16_layers.empty()) return "layers were kept in bfloat16, which the set does not say of itself";
  if (report.other_model) return "the set is of another model than what it was held against";
  const std::string pinned = why_pinned(c.rotations);
  return pinned.empty() ? pinned : pinned + ": verify a copy, and publish that";
}

void record(const VerifyCommand& c, const VerifyReport& report, Status& status) {
  if (!worth_recording(c, report)) return;
  if (const std::string why = why_unrecorded(c, report); !why.empty()) {
    status.notice("the summary is not recorded: " + why);
    return;
  }
  try {
    record_verification(c.rotations, verification_summary(report));
    status.notice("the summary is recorded in " + (c.rotations / "manifest.json").string());
  } catch (const Error& error) {
    status.warning(std::string("the summary is not recorded: ") + error.what() + " (" + error.where() + ")");
  }
}

/// "2026-01-31 12:00 UTC"
std::string utc_minute() { return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr))); }

/// What cannot be written should be told before the work, not after it.
void require_writable(const std::filesystem::path& file) {
  if (file.empty()) return;
  const AtomicFile probe(file);
  write_unsynced(probe.temporary_path(), "");
}

void run(VerifyCommand& c, Context& context) {
  check_usage(c);
  for (const std::filesystem::path& file : {c.report, context.common.json_file}) require_writable(file);
  c.options.own_windows = c.windows == "own";
  if (c.windows == "none") c.options.sink = c.options.recent = 0;
  c.options.bf16_layers = parse_bf16_layers(c.bf16_layers);
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
  const VerifyReport report = verify_rotations(c.rotations, inputs, c.options, *backend, *context.status);
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
  command
      .add_option("ROTATIONS", c.rotations,
                  "A rotation set, a folder with k_rotation*.pt and v_rotation*.pt, or one .pt file")
      ->required();
  command.add_option("--dump", c.dump, "Measure attention on this dump")->type_name("DIR")->group("Input");
  command.add_option("--stats", c.stats, "Hold rotations against sums that fit --save-stats, or a server, saved")
      ->type_name("FILE")
      ->group("Input");
  add_model_input_options(command, c.input);
  command.remove_option(command.get_option("--model-dtype"));  // models are judged in float32, on the CPU
  add_answer_options(command, c.needles, "Token ids of needles, one a row (.npy)",
                     "Number of tokens of each needle's answer (.npy)", "needles");
  add_answer_options(command, c.quotes,
                     "Token ids of texts that end with a passage of themselves once more, one a row (.npy): does the "
                     "model repeat it word by word?",
                     "Number of tokens at each row's end that the model is to repeat (.npy)", "quotations");
}

std::string method_names() {
  std::string names;
  for (const std::string& name : verify::method_names()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

void add_settings(CLI::App& command, VerifyCommand& c) {
  VerifyOptions& options = c.options;
  command
      .add_option("--compare", options.compare,
                  "Methods to set beside it: all (the usual ones), every, none, or names (see below)")
      ->delimiter(',')
      ->capture_default_str()
      ->group("Verify");
  verify::ProductCodes& codes = options.product_codes;
  command
      .add_option("--pq-codebook", codes.codebooks,
                  "Product codebooks of OSCAR's SGLang for keys: the method pq_1.0, or pq_1.5, by the file's bits")
      ->type_name("FILE.pt")
      ->group("Verify");
  command
      .add_option("--pq-rotations", codes.rotations,
                  "The rotation set that they were trained with; default: the set under test")
      ->type_name("SET")
      ->group("Verify");
  command
      .add_option("--windows", c.windows,
                  "common: the set's for every method; own: those that a method's authors use; "
                  "none: no method keeps tokens in bfloat16, as in ports without windows")
      ->check(CLI::IsMember({"common", "own", "none"}))
      ->capture_default_str()
      ->group("Verify");
  command
      .add_option(
          "--bf16-layers", c.bf16_layers,
          "Layers that every method keeps in bfloat16, as ports do with the first and the last: ids, or negative "
          "numbers from the last layer on (0,1,-2,-1)")
      ->type_name("LIST")
      ->group("Verify");
  command.add_option("--precision", c.precision, "serving: bfloat16, as servers round")
      ->check(CLI::IsMember({"serving", "fp32"}))
      ->capture_default_str()
      ->group("Verify");
  command.add_option("--sink", options.sink, "First tokens kept in bfloat16; default: the set's")
      ->check(kNonNegative)
      ->group("Verify");
  command.add_option("--recent", options.recent, "Last tokens kept in bfloat16; default: the set's")
      ->check(kNonNegative)
      ->group("Verify");
  command
      .add_option("--max-queries", options.max_queries,
                  "Queries per layer that attention metrics look at, evenly spread; 0 = all")
      ->check(kNonNegative)
      ->capture_default_str()
      ->group("Verify");
  command.add_option("--context", options.context, "Context length for bits per element")
      ->check(kPositive)
      ->capture_default_str()
      ->group("Verify");
  writes(command.add_option("--report", c.report, "Write tables and plots to this HTML file, which needs no network"))
      ->type_name("FILE.html")
      ->group("Output");
  command.add_flag("--record,!--no-record", c.record, "Keep the summary in the set's manifest [on]")->group("Output");
}

}  // namespace

void register_verify(CLI::App& app, Context& context) {
  CLI::App* command =
      app.add_subcommand("verify", "Check a rotation set and measure what it does, beside other methods");
  command->footer("Methods:\n  " + wrapped(method_names(), 2));
  auto options = std::make_shared<VerifyCommand>();
  add_inputs(*command, *options);
  add_settings(*command, *options);
  add_verdict_options(*command, options->options);
  add_backend_options(*command, context);
  add_json_option(*command, context);
  command->callback([options, &context] { run(*options, context); });
}

}  // namespace oscar
