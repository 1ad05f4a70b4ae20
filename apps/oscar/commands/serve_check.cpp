// SPDX-License-Identifier: MIT
#include "serve/serve_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "commands/commands.hpp"
#include "console.hpp"
#include "measure/set_method.hpp"
#include "model_input.hpp"
#include "options.hpp"
#include "remote/curl_call.hpp"
#include "serve/long_check.hpp"
#include "set/set_folder.hpp"

namespace oscar {
namespace {

struct ServeCheckCommand {
  std::filesystem::path rotations;
  std::string url, reference, reader;
  ModelInput input;
  ServeCheckOptions options;
  std::string long_reference, save_long;  // of --long: an address, or a file of --save-long
  serve::LongOptions long_options;
  double timeout_seconds = 300;
};

StoreLocation server_of(const std::string& url, const char* option) {
  StoreLocation server = parse_location(url, {option, "give one like http://localhost:8000"});
  if (!server.remote) {
    throw UsageError("\"" + url + "\" is no http:// or https:// address", option,
                     "give one like http://localhost:8000");
  }
  if (server.url.ends_with("/v1")) server.url.resize(server.url.size() - 3);
  server.bearer_token = environment("OPENAI_API_KEY");
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
    if (answer.status == 200) return parse_json(answer.body, call.url);
    throw TransportError(fmt::format("the server answered HTTP {}: {}", answer.status, answer.body.substr(0, 200)),
                         call.url,
                         path.ends_with("/chat/completions")
                             ? "a server of a model without a chat template cannot answer questions: leave them out by "
                               "--questions 0"
                             : "check the address, and that OPENAI_API_KEY is the server's key if it needs one");
  };
}

/// What the server says that it is, if that is a reader of sets.
std::string reader_that_answers(const serve::AskServer& ask, Status& status) {
  const Json answer = ask("/v1/models", nullptr);
  const Json::json_pointer owner("/data/0/owned_by");
  const Json said = answer.contains(owner) ? answer.at(owner) : Json();
  if (said != "vllm" && said != "sglang") {
    throw UsageError("servers read different parts of this set", "--for",
                     "say which server it is: --for vllm, sglang, sglang-v1 or llamacpp");
  }
  status.notice("the server says that it is " + said.get<std::string>() + "; --for would say otherwise");
  return said;
}

/// The cache that a server of this set has: that of the part which `reader` reads; empty: which the server itself says
/// that it is, where readers read different parts. Throws UsageError, DataError.
ServedSet served_set(const std::filesystem::path& folder, std::string reader, const serve::AskServer& ask,
                     Status& status) {
  const Set set = read_set(folder);  // a server that calibrates itself writes into the set that it was given
  if (set.manifest.is_null()) throw UsageError("this is no set with a manifest", folder.string(), "oscar convert it");
  const auto parts = parts_of_readers(set);
  const auto differs = [&](const auto& other) { return other.second != parts.begin()->second; };
  if (reader.empty() && std::ranges::any_of(parts, differs)) reader = reader_that_answers(ask, status);
  const auto own = reader.empty() ? parts.begin() : parts.find(reader);
  if (own == parts.end()) {
    throw UsageError("the set has no part for " + (reader.empty() ? "any server" : reader), folder.string(),
                     "fit one: oscar fit --for " + (reader.empty() ? "vllm" : reader));
  }
  if (own->second == kCodedName) return {method_of(*set.coded, set.windows), {}};
  return {method_of(set.rotations.at(own->second), set.windows), served_files(set, own->second)};
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

/// A table, a line for each figure.
std::string long_summary(const std::vector<serve::LongFigure>& figures, const serve::LongTask& task) {
  std::string text = fmt::format("long answers: {} and {}\n", plural(std::ssize(task.prompts), "passage"),
                                 plural(std::ssize(task.questions), "question"));
  text += fmt::format("  {:<11}{:>10}{:>10}{:>12}  {:<18} {}\n", "", "reference", "server", "difference", "95 %", "");
  for (const serve::LongFigure& f : figures) {
    text += fmt::format("  {:<11}{:>10.4g}{:>10.4g}{:>+12.3f}  {:<18} {}\n", f.name, f.reference, f.server,
                        f.difference, fmt::format("{:+.3f} to {:+.3f}", f.interval.low, f.interval.high), f.verdict());
  }
  return text;
}

/// Throws UsageError for numbers of questions or tokens that give no interval, or hold no passage.
void require_enough(const ServeCheckCommand& c) {
  const int questions = c.long_options.questions;
  if (questions > 0 && questions < serve::kFewestLong) {
    throw UsageError(fmt::format("{} say nothing", plural(questions, "question")), "--questions",
                     fmt::format("give 0, or {} and more", serve::kFewestLong));
  }
  // A passage at a quarter of its prompt has to end in it.
  const int least = 2 * (serve::kCueTokens + serve::kQuotedTokens);
  if (c.options.prompt_tokens < least) {
    throw UsageError("prompts are too short to hold a passage", "--prompt-tokens",
                     fmt::format("give {} or more", least));
  }
}

/// What long answers are compared with.
struct LongReference {
  std::string name;  // an address without credentials, or a file
  serve::LongTask task;
  std::optional<serve::LongAnswers> kept;
  serve::AskServer ask;  // where none are kept
};

/// A command with what it talks to.
class ServeCheck {
 public:
  ServeCheck(ServeCheckCommand& command, Context& context)
      : c_(command),
        context_(context),
        status_(*context.status),
        server_(server_of(c_.url, "--url")),
        ask_(asker(server_, c_.timeout_seconds, status_)) {}

  void run() {
    if (c_.options.min_kl > c_.options.max_kl) {
      throw UsageError("--min-kl is above --max-kl", "--min-kl", "give two limits that leave room between them");
    }
    c_.long_options.prompt_tokens = c_.options.prompt_tokens;
    if (!c_.long_reference.empty() || !c_.save_long.empty()) require_enough(c_);
    if (!c_.save_long.empty()) return save();
    if (c_.rotations.empty()) {
      throw UsageError("no set", "SET", "name the set that the server should use");
    }
    check();
  }

 private:
  [[nodiscard]] std::vector<TokenSequence> texts() const {
    return read_sequences(c_.input, read_model_config(c_.input.model), status_);
  }

  /// Asks the server and writes its answers to the file of --save-long.
  void save() {
    const serve::LongTask task = serve::make_long_task(texts(), c_.long_options);
    const serve::LongAnswers answers = serve::ask_long(ask_, c_.options.served_model, serve::TokenNames(c_.input.model),
                                                       task, c_.long_options, status_);
    const Json document = serve::to_json(answers, c_.long_options, server_.url);
    validate_json(document, "oscar.serve_reference.v1", "the answers");
    write_json(c_.save_long, document);
    emit_json(context_, document);
  }

  /// Before anything is asked.
  [[nodiscard]] std::optional<LongReference> long_reference(const std::vector<TokenSequence>& texts) const {
    if (c_.long_reference.empty()) return std::nullopt;
    LongReference reference{c_.long_reference, serve::make_long_task(texts, c_.long_options), {}, {}};
    if (std::filesystem::exists(c_.long_reference)) {
      reference.kept =
          serve::kept_answers(read_json(c_.long_reference), reference.task, c_.long_options, c_.long_reference);
    } else {
      const StoreLocation server = server_of(c_.long_reference, "--long");
      reference.name = server.url;
      reference.ask = asker(server, c_.timeout_seconds, status_);
    }
    return reference;
  }

  void check() {
    const ServedSet set = served_set(c_.rotations, c_.reader, ask_, status_);
    const auto backend = make_backend(context_.common.device, status_);
    std::unique_ptr<ModelRunner> runner;
    ServeReference reference;
    if (c_.reference.empty()) {
      runner = open_exact_model(c_.input, context_);
      reference.runner = runner.get();
    } else {
      reference.ask = asker(server_of(c_.reference, "--reference"), c_.timeout_seconds, status_);
    }
    const serve::TokenNames names(c_.input.model);
    const std::vector<TokenSequence> sequences = texts();
    const std::optional<LongReference> exact = long_reference(sequences);
    ServeCheckReport report = check_server(ask_, names, reference, sequences, set, c_.options, *backend, status_);
    std::vector<serve::LongFigure> figures;
    if (exact) {
      const auto ask_long = [&](const serve::AskServer& ask, const std::string& model) {
        return serve::ask_long(ask, model, names, exact->task, c_.long_options, status_);
      };
      const serve::LongAnswers wanted = exact->kept ? *exact->kept : ask_long(exact->ask, "");
      figures = serve::compare_long(ask_long(ask_, report.served_model), wanted);
      std::ranges::copy(serve::why_worse(figures), std::back_inserter(report.reasons));
      report.accepted = report.reasons.empty();
    }
    warn_of_few(report, status_);
    Json document = to_json(report, c_.options);
    if (exact) document["long"] = serve::to_json(figures, exact->task, c_.long_options, exact->name);
    document["url"] = server_.url;
    if (!c_.reference.empty()) document["reference"] = server_of(c_.reference, "--reference").url;
    validate_json(document, "oscar.serve_check.v1", "the report");
    if (!context_.common.json_to_stdout) print((exact ? long_summary(figures, exact->task) : "") + summary(report));
    emit_json(context_, document);
    if (!report.accepted) context_.exit_code = 3;
  }

  ServeCheckCommand& c_;
  Context& context_;
  Status& status_;
  StoreLocation server_;
  serve::AskServer ask_;
};

void add_check_options(CLI::App& command, ServeCheckCommand& c) {
  const auto add = [&](const char* group, const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->capture_default_str()->group(group);
  };
  const char *const check = "Check", *const more = "More about the check";
  add(check, "--for", c.reader, "What the server is, where servers read different parts of the set")
      ->check(CLI::IsMember(reader_names()));
  add(check, "--served-model", c.options.served_model, "Its name at the server; default: the first that it lists");
  add(check, "--prompts", c.options.prompts, "Texts to be continued")->check(kPositive);
  add(check, "--needles", c.options.needles, "Prompts that repeat a span from their beginning")
      ->check(CLI::Range(0, 4096));
  add(more, "--prompt-tokens", c.options.prompt_tokens, "Of each; more than both windows")->check(kPositive);
  add(more, "--generate", c.options.generated_tokens, "Tokens to be generated for each")->check(CLI::Range(2, 4096));
  CLI::Option* const reference = command.get_option("--reference");
  add(more, "--min-ratio", c.options.min_ratio, "Reject below this share of the predicted KL")
      ->check(kNonNegative)
      ->excludes(reference);
  add(more, "--max-ratio", c.options.max_ratio, "Reject above this multiple of the predicted KL")
      ->check(kNonNegative)
      ->excludes(reference);
  add(more, "--min-agreement", c.options.min_agreement, "Reject below this cosine of changes")
      ->check(CLI::Range(-1.0, 1.0))
      ->excludes(reference);
  add(more, "--min-kl", c.options.min_kl, "With --reference: reject below so many nats")
      ->check(kNonNegative)
      ->needs(reference);
  add(more, "--max-kl", c.options.max_kl, "With --reference: reject above so many nats")
      ->check(kNonNegative)
      ->needs(reference);
  add(more, "--timeout", c.timeout_seconds, "Seconds to wait for a silent server")->check(kPositive);

  const char *const shown = "Long answers", *const more_long = "More about long answers";
  CLI::Option* const long_answers = command.add_option(
      "--long", c.long_reference,
      "Compare long answers, too, with those of this server in bfloat16 (an address), or with those that --save-long "
      "kept of one (a FILE)");
  long_answers->type_name("URL|FILE")->group(shown);
  writes(
      command.add_option("--save-long", c.save_long, "Keep this server's long answers for --long, and check nothing"))
      ->type_name("FILE")
      ->excludes(long_answers)
      ->group(shown);
  add(more_long, "--passages", c.long_options.passages, "Texts to go on from, and to quote a passage of")
      ->check(CLI::Range(serve::kFewestLong, 4096));
  add(more_long, "--questions", c.long_options.questions, "Questions to answer in chat; 0: none")
      ->check(CLI::Range(0, 4096));
  add(more_long, "--long-tokens", c.long_options.long_tokens, "To be written before a passage is quoted")
      ->check(kPositive);
  add(more_long, "--answer-tokens", c.long_options.answer_tokens, "Most for an answer")->check(kPositive);
  add(more_long, "--temperature", c.long_options.temperature, "Of all that is not quoted")->check(kNonNegative);
}

/// Refuses what only checks, or only long answers, take.
void check_usage(const CLI::App& command, const ServeCheckCommand& c) {
  if (!c.save_long.empty()) {
    refuse_given(command,
                 {"SET", "--reference", "--for", "--prompts", "--needles", "--generate", "--min-ratio", "--max-ratio",
                  "--min-agreement"},
                 "--save-long checks nothing");
  } else if (c.long_reference.empty()) {
    refuse_given(command, {"--passages", "--questions", "--long-tokens", "--answer-tokens", "--temperature"},
                 "there are no long answers without --long or --save-long");
  }
}

}  // namespace

void register_serve_check(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("serve-check", "Find out whether a running server uses a set");
  command->footer(
      "Examples:\n"
      "  oscar serve-check set --url http://localhost:30000 --model Qwen3-8B\n"
      "  oscar serve-check --url http://localhost:30000 --model Qwen3-8B --save-long bf16.json\n"
      "  oscar serve-check set --url http://localhost:30000 --model Qwen3-8B --long bf16.json");
  auto options = std::make_shared<ServeCheckCommand>();
  command->add_option("SET", options->rotations, "The set that it should use; without it only --save-long");
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
  add_json_option(*command, context);
  command->callback([options, command, &context] {
    check_usage(*command, *options);
    ServeCheck(*options, context).run();
  });
}

}  // namespace oscar
