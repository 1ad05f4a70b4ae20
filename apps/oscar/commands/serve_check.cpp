// SPDX-License-Identifier: MIT
#include "serve/serve_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "coded/coded_set.hpp"
#include "commands/commands.hpp"
#include "commands/serve_check_long.hpp"
#include "console.hpp"
#include "model_input.hpp"
#include "options.hpp"
#include "remote/curl_call.hpp"
#include "rotation/one_truth.hpp"
#include "verify/methods.hpp"
#include "verify/structure/subject.hpp"

namespace oscar {
namespace {

struct ServeCheckCommand {
  std::filesystem::path rotations;
  std::string url, reference;
  ModelInput input;
  ServeCheckOptions options;
  LongChoices long_answers;
  double timeout_seconds = 300;
};

StoreLocation server_of(const std::string& url, const char* option) {
  StoreLocation server = parse_location(url, {option, "give one like http://localhost:8000"});
  if (!server.remote) {
    throw UsageError("\"" + url + "\" is no http:// or https:// address", option,
                     "give one like http://localhost:8000");
  }
  if (server.url.ends_with("/v1")) server.url.resize(server.url.size() - 3);
  server.bearer_token = environment({"OPENAI_API_KEY"});
  return server;
}

serve::AskServer asker(const StoreLocation& server, double timeout_seconds, Status& status) {
  return [=, &status](const std::string& path, const Json* body) {
    const HttpCall call{body != nullptr ? "POST" : "GET",
                        server.url + path,
                        {"Content-Type: application/json"},
                        body != nullptr ? body->dump() : "",
                        {}};
    const HttpAnswer answer = call_http(server, call, {.timeout_seconds = timeout_seconds}, status);
    if (answer.status != 200) {
      throw TransportError(fmt::format("the server answered HTTP {}: {}", answer.status, answer.body.substr(0, 200)),
                           call.url, "check the address, and that OPENAI_API_KEY is the server's key if it needs one");
    }
    return parse_json(answer.body, call.url);
  };
}

/// The cache that a server of this set has. Throws UsageError, DataError.
ServedSet served_set(const std::filesystem::path& rotations) {
  if (is_coded_set(rotations)) {
    const CodedSet set = read_coded_set(rotations);
    return {method_of_coded_set(set, set.windows), {}};
  }
  const RotationSubject subject = read_rotations(rotations);
  if (!subject.ours)
    throw UsageError("this is no rotation set with a manifest", rotations.string(), "oscar convert it");
  require_sound_set(rotations);  // a server that calibrates itself writes into the set that it was given
  const RotationSet set = set_of(subject);
  return {verify::method_of_set(set, set.windows), served_files(set)};
}

/// Generated tokens below which a set that the server does not use can agree with it by chance.
constexpr std::int64_t kFewTokens = 100;

void warn_of_few(const ServeCheckReport& report, Status& status) {
  if (!report.accepted || !report.has_prediction || report.differences.positions >= kFewTokens) return;
  status.warning(
      fmt::format("only {} compared, fewer than {}: so few can agree with a set that the server does not use; raise "
                  "--prompts or --generate",
                  plural(report.differences.positions, "generated token"), kFewTokens));
}

std::string summary(const ServeCheckReport& r) {
  const serve::ServedDifferences& found = r.differences;
  std::string text =
      fmt::format("{}: {} and {} ({} found), {}\n", r.served_model, plural(r.prompts, "prompt"),
                  plural(r.needles, "needle"), r.needles_found, plural(found.positions, "generated token"));
  text += r.has_prediction
              ? fmt::format("from exact attention: server {:.4g} nats, predicted {:.4g}; agreement {:.2f}\n",
                            found.measured_kl, found.predicted_kl, found.agreement)
              : fmt::format("from the reference: {:.4g} nats, the same choice at {:.0f} % of the tokens\n",
                            found.measured_kl, 100 * found.same_top);
  const char* accepted =
      r.has_prediction ? "accepted: the server uses this set" : "accepted: the server's cache is quantised";
  text += std::string(r.accepted ? accepted : "rejected") + "\n";
  for (const std::string& reason : r.reasons) text += "  " + reason + "\n";
  return text;
}

void run(ServeCheckCommand& c, Context& context) {
  if (c.options.min_kl > c.options.max_kl) {
    throw UsageError("--min-kl is above --max-kl", "--min-kl", "give two limits that leave room between them");
  }
  const StoreLocation server = server_of(c.url, "--url");
  const auto server_at = [&](const std::string& url, const char* option) {
    return asker(server_of(url, option), c.timeout_seconds, *context.status);
  };
  c.long_answers.options.prompt_tokens = c.options.prompt_tokens;
  if (c.long_answers.wanted()) require_enough(c.long_answers);
  const auto texts_of = [&] { return read_sequences(c.input, read_model_config(c.input.model), *context.status); };
  if (!c.long_answers.save.empty()) {
    emit_json(context, save_long(c.long_answers, server_at(c.url, "--url"), server.url, c.options.served_model,
                                 serve::TokenNames(c.input.model), texts_of(), *context.status));
    return;
  }
  if (c.rotations.empty()) throw UsageError("no rotation set", "ROTATIONS", "name the set that the server should use");
  const ServedSet set = served_set(c.rotations);
  const auto backend = make_backend(context.common.device, *context.status);
  std::unique_ptr<ModelRunner> runner;
  ServeReference reference;
  if (c.reference.empty()) {
    runner = open_exact_model(c.input, context);
    reference.runner = runner.get();
  } else {
    reference.ask = server_at(c.reference, "--reference");
  }
  const serve::TokenNames names(c.input.model);
  const std::vector<TokenSequence> texts = texts_of();
  const serve::AskServer ask = server_at(c.url, "--url");
  std::optional<LongReference> exact;
  if (!c.long_answers.reference.empty()) {
    exact = long_reference(c.long_answers, texts);
    if (!exact->kept) {
      exact->name = server_of(c.long_answers.reference, "--long").url;
      exact->ask = server_at(c.long_answers.reference, "--long");
    }
  }
  ServeCheckReport report = check_server(ask, names, reference, texts, set, c.options, *backend, *context.status);
  std::vector<serve::LongFigure> figures;
  if (exact) {
    figures = check_long(c.long_answers, *exact, ask, report.served_model, names, *context.status);
    std::ranges::copy(serve::why_worse(figures), std::back_inserter(report.reasons));
    report.accepted = report.reasons.empty();
  }
  warn_of_few(report, *context.status);
  Json document = to_json(report, c.options);
  if (exact) document["long"] = serve::to_json(figures, exact->task, c.long_answers.options, exact->name);
  document["url"] = server.url;
  if (!c.reference.empty()) document["reference"] = server_of(c.reference, "--reference").url;
  validate_json(document, "oscar.serve_check.v1", "the report");
  if (!context.common.json_to_stdout) print((exact ? long_summary(figures, exact->task) : "") + summary(report));
  emit_json(context, document);
  if (!report.accepted) context.exit_code = 3;
}

void add_check_options(CLI::App& command, ServeCheckCommand& c) {
  const auto add = [&](const char* name, auto& value, const char* words) {
    return command.add_option(name, value, words)->capture_default_str()->group("Check");
  };
  add("--served-model", c.options.served_model, "Its name at the server; default: the first that it lists");
  add("--prompts", c.options.prompts, "Texts to be continued")->check(kPositive);
  add("--needles", c.options.needles, "Prompts that repeat a span from their beginning")->check(kNonNegative);
  add("--prompt-tokens", c.options.prompt_tokens, "Of each; more than both windows")->check(kPositive);
  add("--generate", c.options.generated_tokens, "Tokens to be generated for each")->check(CLI::Range(2, 4096));
  CLI::Option* const reference = command.get_option("--reference");
  add("--min-ratio", c.options.min_ratio, "Reject below this share of the predicted KL")
      ->check(kNonNegative)
      ->excludes(reference);
  add("--max-ratio", c.options.max_ratio, "Reject above this multiple of the predicted KL")
      ->check(kNonNegative)
      ->excludes(reference);
  add("--min-agreement", c.options.min_agreement, "Reject below this cosine of changes")
      ->check(kFinite)  // a range lets NaN pass
      ->check(CLI::Range(-1.0, 1.0))
      ->excludes(reference);
  add("--min-kl", c.options.min_kl, "With --reference: reject below so many nats")
      ->check(kNonNegative)
      ->needs(reference);
  add("--max-kl", c.options.max_kl, "With --reference: reject above so many nats")
      ->check(kNonNegative)
      ->needs(reference);
  add("--timeout", c.timeout_seconds, "Seconds to wait for a silent server")->check(kPositive);
}

}  // namespace

void register_serve_check(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("serve-check", "Find out whether a running server uses a rotation set");
  command->footer(
      "Examples:\n"
      "  oscar serve-check set --url http://localhost:30000 --model Qwen3-8B\n"
      "  oscar serve-check --url http://localhost:30000 --model Qwen3-8B --save-long bf16.json\n"
      "  oscar serve-check set --url http://localhost:30000 --model Qwen3-8B --long bf16.json");
  auto options = std::make_shared<ServeCheckCommand>();
  command->add_option("ROTATIONS", options->rotations,
                      "The rotation set that it should use; without it only --save-long");
  command
      ->add_option("--url", options->url, "Of a server with OpenAI's completions interface, like http://localhost:8000")
      ->required();
  command->add_option(
      "--reference", options->reference,
      "A server of the same model with an exact cache, in place of the weights in --model, of which only "
      "config.json and the tokenizer are read then; tells that the cache is quantised, not by what");
  add_model_input_options(*command, options->input);
  command->get_option("--model")->required();
  command->remove_option(command->get_option("--model-dtype"));
  command->remove_option(command->get_option("--layers"));
  add_check_options(*command, *options);
  add_long_options(*command, options->long_answers);
  add_json_option(*command, context);
  command->callback([options, &context] { run(*options, context); });
}

}  // namespace oscar
