// SPDX-License-Identifier: MIT
#include "zoo/pull.hpp"

#include <cstdio>

#include "commands.hpp"
#include "options.hpp"
#include "verify/inspect/inspect.hpp"

namespace oscar {
namespace {

void run(const PullOptions& options, Context& context) {
  const PullResult result = pull(options, *context.status, open_transport, require_sound_set);
  if (result.fetched) context.status->notice("fetched " + result.name + ", every hash checked");
  if (!context.common.json_to_stdout) std::puts(result.path.c_str());
  emit_json(context, {{"name", result.name},
                      {"zoo", result.zoo},
                      {"path", result.path.string()},
                      {"manifest_sha256", result.manifest_sha256},
                      {"total_size", result.total_size},
                      {"fetched", result.fetched},
                      {"readers", result.readers}});
}

}  // namespace

void register_pull(CLI::App& app, Context& context) {
  const auto options = std::make_shared<PullOptions>();
  CLI::App* pull = app.add_subcommand("pull", "Fetch a set from a zoo, check it, print its path");
  pull->footer(
      "Examples:\n"
      "  oscar pull me/my-model --zoo https://example.org/zoo\n"
      "  oscar pull hf://ORG/REPO/FOLDER --out set");
  pull->add_option("NAME", options->name,
                   "ORG/MODEL (= ORG/MODEL:latest), ORG/MODEL:TAG, ORG/MODEL@sha256:HEX, or rotation files on the "
                   "Hugging Face Hub: hf://ORG/REPO/FOLDER[@REVISION]")
      ->required();
  pull->add_option("--zoo", options->zoo,
                   "Folder, file://, http://, https:// or hf://ORG/REPO; default: OSCAR_ZOO, else this installation's "
                   "zoo")
      ->type_name("DIR|URL");
  pull->add_option(
      "--pair", options->pair,
      "Of a folder on the Hub with several pairs of .pt files, which: what follows k_rotation_ in the name "
      "of its key file (perhead); default: the only pair");
  CLI::Option* out =
      writes(pull->add_option("--out", options->out, "Write the set to this folder; default: the cache"));
  out->type_name("DIR");
  pull->add_flag("--force", options->force, "Replace another set in --out")->needs(out);
  CLI::Option* offline =
      pull->add_flag("--offline", options->offline, "Use no network: only the cache, or a zoo in a folder");
  pull->add_flag("--refresh", options->refresh, "Ask a web zoo again although the cache knows the name")
      ->excludes(offline);
  pull->add_flag("--require-signature", options->trust.require_signature,
                 "Refuse what is not signed, and from then on what others sign")
      ->group("Trust");
  pull->add_option("--key", options->trust.keys, "Public Ed25519 key (PEM) that must have signed; may be given again")
      ->type_name("FILE")
      ->group("Trust");
  pull->add_option("--max-size", options->max_bytes, "Refuse sets of more bytes")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->check(kPositive)
      ->type_name("SIZE")
      ->default_str("4G")
      ->group("Transfer");
  add_timeout_option(*pull, options->transfer.timeout_seconds);
  pull->add_option("--retries", options->transfer.retries, "Further attempts after HTTP 429, 5xx or a lost connection")
      ->check(CLI::Range(0, 20))
      ->capture_default_str()
      ->group("Transfer");
  add_json_option(*pull, context);
  pull->callback([options, &context] { run(*options, context); });
}

}  // namespace oscar
