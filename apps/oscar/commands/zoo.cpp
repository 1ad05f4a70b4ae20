// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "inspect/inspect.hpp"
#include "options.hpp"
#include "zoo/list.hpp"
#include "zoo/publish.hpp"
#include "zoo/pull.hpp"

namespace oscar {
namespace {

/// "coded 2.25, rotations 2": bits of a value, of keys and values where they differ.
std::string parts_text(const Json& parts) {
  std::string all;
  const auto text = [](const Json& bits) { return bits.is_null() ? "?" : fmt::format("{:.3g}", bits.get<double>()); };
  for (const auto& [name, part] : parts.items()) {
    const std::string key = text(part["bits"]["key"]), value = text(part["bits"]["value"]);
    all += (all.empty() ? "" : ", ") + name + " " + (key == value ? key : key + "/" + value);
  }
  return all;
}

/// The lowest of the parts'.
std::string kld_text(const Json& parts) {
  std::optional<double> lowest;
  for (const Json& part : parts) {
    if (part["kld"].is_number()) lowest = std::min(part["kld"].get<double>(), lowest.value_or(HUGE_VAL));
  }
  return lowest ? fmt::format("{:.4f}", *lowest) : "";
}

/// "vllm, sglang; not llamacpp": whom verify has accepted it for, and whom not.
std::string readers_text(const Json& readers) {
  std::string accepted, others;
  for (const auto& [name, each] : readers.items()) {
    std::string& list = each["verdict"] == "accepted" ? accepted : others;
    list += (list.empty() ? "" : ", ") + name;
  }
  return accepted + (accepted.empty() || others.empty() ? "" : "; ") + (others.empty() ? "" : "not " + others);
}

/// One cell: text of others stays on its line, and takes no more than that.
std::string cell(const std::string& text) {
  return printable_line(text.size() > 60 ? text.substr(0, 57) + "..." : text);
}

std::string notes_of(const Json& row) {
  const std::string forced = row["forced"].get<bool>() ? "forced" : "";
  return row["signed_by"].empty() ? forced : forced.empty() ? "signed" : "signed, " + forced;
}

void run_list(const ListOptions& options, const Context& context) {
  const ZooList list = list_zoo(options, *context.status);
  std::vector<std::vector<std::string>> rows{{"name", "model", "parts and bits", "accepted for", "KLD", "MB", "notes"}};
  for (const Json& row : list.rows) {
    rows.push_back({row["name"], cell(row["model"]), parts_text(row["parts"]), readers_text(row["readers"]),
                    kld_text(row["parts"]), fmt::format("{:.1f}", row["total_size"].get<double>() / 1e6),
                    notes_of(row)});
  }
  if (!context.common.json_to_stdout && rows.size() > 1) print(format_table(rows));
  if (list.rows.empty()) {
    context.status->notice(list.all == 0 ? "the zoo is empty: " + list.zoo
                                         : "none of the " + plural(list.all, "set") + " fits: " + list.zoo);
  }
  emit_json(context, {{"zoo", list.zoo}, {"sets", list.rows}});
}

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

void register_zoo(CLI::App& app, Context& context) {
  CLI::App* zoo = app.add_subcommand("zoo", "See what a zoo has");
  zoo->require_subcommand(1);
  const auto options = std::make_shared<ListOptions>();
  CLI::App* list = zoo->add_subcommand("list", "List the sets of a zoo");
  list->footer(
      "Examples:\n"
      "  oscar zoo list\n"
      "  oscar zoo list 'Qwen/*' --zoo https://example.org/zoo");
  list->add_option("PATTERN", options->pattern,
                   "A part of ORG/MODEL:TAG, or with * and ? what all of it looks like; default: every set");
  list->add_option(
          "--zoo", options->zoo,
          "Folder, file://, http://, https:// or hf://ORG/REPO; default: OSCAR_ZOO, else this installation's zoo")
      ->type_name("DIR|URL");
  add_timeout_option(*list, options->transfer.timeout_seconds);
  add_json_option(*list, context);
  list->callback([options, &context] {
    const std::filesystem::path& json = context.common.json_file;
    const bool may_be_pattern = !json.empty() && json.extension() != ".json" && !json.parent_path().has_filename() &&
                                !std::filesystem::exists(json);
    if (options->pattern.empty() && may_be_pattern) {
      throw UsageError("this may be meant as PATTERN, and would be written as FILE", "--json " + json.string(),
                       "give --json behind the PATTERN, or a FILE that ends in .json");
    }
    run_list(*options, context);
  });
}

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
  pull->option_defaults()->group("Trust");
  pull->add_flag("--require-signature", options->trust.require_signature,
                 "Refuse what is not signed, and from then on what others sign");
  pull->add_option("--key", options->trust.keys, "Public Ed25519 key (PEM) that must have signed; may be given again")
      ->type_name("FILE");
  pull->option_defaults()->group("Transfer");
  pull->add_option("--max-size", options->max_bytes, "Refuse sets of more bytes")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->check(kPositive)
      ->type_name("SIZE")
      ->default_str("4G");
  add_timeout_option(*pull, options->transfer.timeout_seconds);
  pull->add_option("--retries", options->transfer.retries, "Further attempts after HTTP 429, 5xx or a lost connection")
      ->check(CLI::Range(0, 20))
      ->capture_default_str();
  add_json_option(*pull, context);
  pull->callback([options, &context] { run(*options, context); });
}

}  // namespace oscar
