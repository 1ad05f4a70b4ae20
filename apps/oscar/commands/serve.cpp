// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/errors.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "measure/kv_method.hpp"
#include "model_input.hpp"
#include "options.hpp"
#include "remote/fetch.hpp"
#include "serve/serve_check.hpp"
#include "set/serve_env.hpp"
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
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGXFSZ, SIGPIPE}) ::sigaction(signal, nullptr, &found[signal]);
  return found;
}();

/// Takes the place of this process.
[[noreturn]] void start(const std::vector<std::string>& server) {
  throw_if_interrupted();
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

struct ServeCheckCommand {
  std::filesystem::path rotations;
  std::string url, reference, reader;
  ModelInput input;
  ServeCheckOptions options;
  double timeout_seconds = 300;
};

StoreLocation server_of(const std::string& url, const char* option) {
  StoreLocation server = parse_location(url, {option, "give one like http://localhost:8000"});
  if (!server.remote) {
    throw UsageError("\"" + url + "\" is no http:// or https:// address", option,
                     "give one like http://localhost:8000");
  }
  if (server.url.ends_with("/v1")) server.url.resize(server.url.size() - 3);
  if (may_see_secrets(server.url)) server.bearer_token = environment("OPENAI_API_KEY");
  return server;
}

serve::AskServer asker(const StoreLocation& server, double timeout_seconds, Status& status) {
  const auto send = [=, &status](const std::string& path, const Json* body) {
    const HttpCall call{body != nullptr ? "POST" : "GET",
                        server.url + path,
                        {"Content-Type: application/json"},
                        body != nullptr ? body->dump() : "",
                        {}};
    const HttpAnswer answer = call_http(server, call, {.timeout_seconds = timeout_seconds}, status);
    if (answer.status == 200) return parse_json(answer.body, call.url);
    throw TransportError(
        fmt::format("the server answered HTTP {}: {}", answer.status, answer.body.substr(0, 200)), call.url,
        "check the address, and that OPENAI_API_KEY is the server's key if it needs one, which goes only "
        "over TLS (https://) or to this machine");
  };
  return {server.url, send};
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
      fmt::format("{}: {} and {} ({} found), {}\n", printable_line(r.served_model), plural(r.prompts, "prompt"),
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

/// Texts are cut to --seq-len and the model's context, and prompts are cut from them.
void require_whole_prompts(const ServeCheckCommand& c, const ModelConfig& config) {
  const std::int64_t asked = c.options.prompt_tokens, context = config.max_position_embeddings;
  if (asked > context) {
    throw UsageError(fmt::format("the model reads {} tokens at most", context), "--prompt-tokens", "give fewer");
  }
  if (asked <= c.input.limits.seq_len) return;
  throw UsageError(fmt::format("--seq-len cuts texts to {} tokens", c.input.limits.seq_len), "--prompt-tokens",
                   "give fewer, or a larger --seq-len");
}

void check(const ServeCheckCommand& c, Context& context) {
  if (c.options.min_kl > c.options.max_kl) {
    throw UsageError("--min-kl is above --max-kl", "--min-kl", "give two limits that leave room between them");
  }
  if (c.options.min_ratio > c.options.max_ratio) {
    throw UsageError("--min-ratio is above --max-ratio", "--min-ratio", "give two limits that leave room between them");
  }
  const ModelConfig config = read_model_config(c.input.model);
  require_whole_prompts(c, config);
  Status& status = *context.status;
  const StoreLocation server = server_of(c.url, "--url");
  const serve::AskServer ask = asker(server, c.timeout_seconds, status);
  const ServedSet set = served_set(c.rotations, c.reader, ask, status);
  const auto backend = make_backend(context.common.device, status);
  std::unique_ptr<ModelRunner> runner;
  ServeReference reference;
  if (c.reference.empty()) {
    runner = open_exact_model(c.input, context);
    reference.runner = runner.get();
  } else {
    reference.ask = asker(server_of(c.reference, "--reference"), c.timeout_seconds, status);
  }
  const serve::TokenNames names(c.input.model);
  const std::vector<TokenSequence> texts = read_sequences(c.input, config, status);
  const ServeCheckReport report = check_server(ask, names, reference, texts, set, c.options, *backend, status);
  warn_of_few(report, status);
  Json document = to_json(report, c.options);
  document["url"] = server.url;
  if (!c.reference.empty()) document["reference"] = server_of(c.reference, "--reference").url;
  validate_json(document, "oscar.serve_check.v1", "the report");
  if (!context.common.json_to_stdout) print(summary(report));
  emit_json(context, document);
  if (!report.accepted) context.exit_code = 3;
}

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
  add(more, "--generate", c.options.generated_tokens, "Tokens to be generated for each; needles have at least 16")
      ->check(CLI::Range(2, 4096));
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
  command->add_option("SERVER", options->server,
                      "Start this command, which stands behind --, with that environment, instead of printing it");
  command
      ->add_option("--for", options->reader,
                   "The server: sglang, sglang-v1 or llamacpp; default: the first of these that the set has a part for")
      ->check(CLI::IsMember(reader_names(/*rotations_only=*/true)));
  command->add_flag("--allow-rejected", options->allow_rejected,
                    "Serve a part that verify has rejected for this server");
  add_json_option(*command, context);
  command->callback([options, &context] { run(*options, context); });
}

void register_serve_check(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("serve-check", "Find out whether a running server uses a set");
  command->footer("Example:\n  oscar serve-check set --url http://localhost:30000 --model Qwen3-8B");
  auto options = std::make_shared<ServeCheckCommand>();
  command->add_option("SET", options->rotations, "The set that it should use")->required();
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
  command->callback([options, &context] { check(*options, context); });
}

}  // namespace oscar
