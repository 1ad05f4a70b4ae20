// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "base/text.hpp"
#include "commands/commands.hpp"
#include "console.hpp"
#include "options.hpp"
#include "zoo/list.hpp"

namespace oscar {
namespace {

std::string bits_of(const ListedSet& set) {
  const auto text = [](const std::optional<double>& bits) { return bits ? fmt::format("{:.3g}", *bits) : "?"; };
  return set.key_bits == set.value_bits ? text(set.key_bits) : text(set.key_bits) + "," + text(set.value_bits);
}

/// One cell: text of others stays on its line, and takes no more than that.
std::string cell(const std::string& text) {
  return printable_line(text.size() > 60 ? text.substr(0, 57) + "..." : text);
}

std::string notes_of(const ZooEntry& entry) {
  const std::string forced = entry.forced ? "forced" : "";
  return entry.signed_by.empty() ? forced : forced.empty() ? "signed" : "signed, " + forced;
}

void run_list(const ListOptions& options, const Context& context) {
  const ZooList list = list_zoo(options, *context.status);
  std::vector<std::vector<std::string>> rows{{"name", "model", "recipe", "bits", "KLD", "verdict", "MB", "notes"}};
  for (const ListedSet& set : list.sets) {
    rows.push_back({set.name(), cell(set.model), cell(set.recipe), bits_of(set),
                    set.kld ? fmt::format("{:.4f}", *set.kld) : "", cell(set.verdict),
                    fmt::format("{:.1f}", static_cast<double>(set.entry.total_size) / 1e6), notes_of(set.entry)});
  }
  if (!context.common.json_to_stdout && rows.size() > 1) print(format_table(rows));
  if (list.sets.empty()) {
    context.status->notice(list.all == 0 ? "the zoo is empty: " + list.zoo
                                         : "none of the " + plural(static_cast<std::int64_t>(list.all), "set") +
                                               " fits: " + list.zoo);
  }
  emit_json(context, to_json(list));
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
  list->callback([options, &context] { run_list(*options, context); });
}

}  // namespace oscar
