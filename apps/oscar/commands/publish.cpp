// SPDX-License-Identifier: MIT
#include "zoo/publish.hpp"

#include "commands.hpp"
#include "verify/inspect/inspect.hpp"

namespace oscar {
namespace {

void run(const PublishOptions& options, Context& context) {
  const PublishResult result = publish(options, *context.status, require_sound_set);
  if (result.changed) context.status->notice("published " + result.name + " in " + result.path);
  emit_json(context, {{"name", result.name},
                      {"path", result.path},
                      {"manifest_sha256", result.entry.manifest_sha256},
                      {"total_size", result.entry.total_size},
                      {"forced", result.entry.forced},
                      {"signed_by", result.entry.signed_by},
                      {"changed", result.changed}});
}

}  // namespace

void register_publish(CLI::App& app, Context& context) {
  const auto options = std::make_shared<PublishOptions>();
  CLI::App* publish = app.add_subcommand("publish", "Add a verified set to a zoo");
  publish->footer(
      "Examples:\n"
      "  oscar publish set --zoo my-zoo --name me/my-model:v1");
  publish->add_option("SET", options->set, "Folder of the set")->required();
  publish->add_option("--zoo", options->zoo, "Folder (made if missing), or hf://ORG/REPO")
      ->type_name("DIR|hf://ORG/REPO")
      ->required()
      ->envname("OSCAR_ZOO");
  publish->add_option("--name", options->name, "Name in the zoo; without a tag: ORG/MODEL:latest")
      ->type_name("ORG/MODEL[:TAG]")
      ->required();
  publish->add_flag(
      "--force", options->force,
      "Publish what verify has accepted for no reader (the index says so), and replace a tag that holds another set");
  publish->add_option("--sign", options->sign, "Sign the manifest with this Ed25519 key (PEM)")->type_name("KEY");
  add_timeout_option(*publish, options->transfer.timeout_seconds);
  add_json_option(*publish, context);
  publish->callback([options, &context] { run(*options, context); });
}

}  // namespace oscar
