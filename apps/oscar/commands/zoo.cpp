// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.hpp"
#include "commands/commands.hpp"
#include "console.hpp"
#include "options.hpp"
#include "zoo/list.hpp"
#include "zoo/manage.hpp"

namespace oscar {
namespace {

struct ZooCommand {
  std::string zoo, url, name, tag, reason;
  std::filesystem::path out;
  bool force = false;
};

void add_zoo_option(CLI::App& command, ZooCommand& c) {
  command.add_option("--zoo", c.zoo, "Folder of the zoo")->type_name("DIR")->required()->envname("OSCAR_ZOO");
}

std::string bits_of(const ListedSet& set) {
  const auto text = [](const std::optional<double>& bits) { return bits ? fmt::format("{:.3g}", *bits) : "?"; };
  return set.key_bits == set.value_bits ? text(set.key_bits) : text(set.key_bits) + "," + text(set.value_bits);
}

/// One cell: text of others stays on its line, and takes no more than that.
std::string cell(const std::string& text) {
  return printable_line(text.size() > 60 ? text.substr(0, 57) + "..." : text);
}

std::string notes_of(const ZooEntry& entry) {
  std::vector<std::string> notes;
  if (!entry.signed_by.empty()) notes.emplace_back("signed");
  if (entry.forced) notes.emplace_back("forced");
  if (!entry.deprecated.empty()) notes.push_back("deprecated: " + entry.deprecated);
  return notes.empty() ? "" : fmt::format("{}", fmt::join(notes, ", "));
}

void run_list(const ListOptions& options, const Context& context) {
  const ZooList list = list_zoo(options, *context.status);
  std::vector<std::vector<std::string>> rows{{"name", "model", "recipe", "bits", "KLD", "verdict", "MB", "notes"}};
  for (const ListedSet& set : list.sets) {
    rows.push_back({set.name(), cell(set.model), cell(set.recipe), bits_of(set),
                    set.kld ? fmt::format("{:.4f}", *set.kld) : "", cell(set.verdict),
                    fmt::format("{:.1f}", static_cast<double>(set.entry.total_size) / 1e6), cell(notes_of(set.entry))});
  }
  if (!context.common.json_to_stdout && rows.size() > 1) print(format_table(rows));
  if (list.sets.empty()) {
    context.status->notice(list.all == 0 ? "the zoo is empty: " + list.zoo
                                         : "none of the " + plural(static_cast<std::int64_t>(list.all), "set") +
                                               " fits: " + list.zoo);
  }
  emit_json(context, to_json(list));
}

void add_list_options(CLI::App& command, ListOptions& options, Context& context) {
  command
      .add_option(
          "--zoo", options.zoo,
          "Folder, file://, http://, https:// or hf://ORG/REPO; default: OSCAR_ZOO, else this installation's zoo")
      ->type_name("DIR|URL");
  add_timeout_option(command, options.transfer.timeout_seconds);
  add_json_option(command, context);
}

void register_list(CLI::App& zoo, Context& context) {
  const auto options = std::make_shared<ListOptions>();
  CLI::App* list = zoo.add_subcommand("list", "List the sets of a zoo");
  list->footer(
      "Examples:\n"
      "  oscar zoo list\n"
      "  oscar zoo list 'Qwen/*' --zoo https://example.org/zoo");
  list->add_option("PATTERN", options->pattern,
                   "A part of ORG/MODEL:TAG, or with * and ? what all of it looks like; default: every set");
  CLI::App* search = zoo.add_subcommand("search", "List the sets of a zoo that have all these words");
  search
      ->add_option("WORDS", options->words, "To be found in name, model, recipe, codec or verdict; case does not count")
      ->required();
  for (CLI::App* command : {list, search}) {
    add_list_options(*command, *options, context);
    command->callback([options, &context] { run_list(*options, context); });
  }
}

void register_render(CLI::App& zoo, Context& context) {
  const auto c = std::make_shared<ZooCommand>();
  CLI::App* command = zoo.add_subcommand("render", "Write a page about a zoo: one HTML file without scripts");
  add_zoo_option(*command, *c);
  writes(command->add_option("--out", c->out, "File to write; default: index.html in the zoo"))->type_name("FILE.html");
  command->add_option("--url", c->url, "Where readers find the zoo, for the commands on the page")->type_name("URL");
  command->callback([c, &context] {
    const std::filesystem::path file = render_zoo_page(c->zoo, c->url, c->out);
    context.status->notice("wrote " + file.string());
  });
}

void register_tag(CLI::App& zoo, Context& context) {
  const auto c = std::make_shared<ZooCommand>();
  CLI::App* command = zoo.add_subcommand("tag", "Give a set in a zoo one more tag, or move a tag to it");
  command->add_option("NAME", c->name, "ORG/MODEL:TAG or ORG/MODEL@sha256:HEX")->required();
  command->add_option("TAG", c->tag, "The new tag")->required();
  add_zoo_option(*command, *c);
  command->add_flag("--force", c->force, "Move the tag although it stands for another set");
  command->callback([c, &context] { tag_set(c->zoo, c->name, c->tag, c->force, *context.status); });
}

void register_deprecate(CLI::App& zoo, Context& context) {
  const auto c = std::make_shared<ZooCommand>();
  CLI::App* command = zoo.add_subcommand("deprecate", "Say that a set should not be used any more, and why");
  command->add_option("NAME", c->name, "ORG/MODEL:TAG")->required();
  command->add_option("REASON", c->reason, "Shown to who pulls it; empty: it may be used again")->required();
  add_zoo_option(*command, *c);
  command->callback([c, &context] { deprecate_set(c->zoo, c->name, c->reason, *context.status); });
}

}  // namespace

void register_zoo(CLI::App& app, Context& context) {
  CLI::App* zoo = app.add_subcommand("zoo", "See what a zoo has; look after one in a folder");
  zoo->require_subcommand(1);
  register_list(*zoo, context);
  register_render(*zoo, context);
  register_tag(*zoo, context);
  register_deprecate(*zoo, context);
}

}  // namespace oscar
