// SPDX-License-Identifier: MIT
#include "commands/commands.hpp"
#include "outputs.hpp"
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
  CLI::App* zoo = app.add_subcommand("zoo", "Look after a zoo in a folder: render, tag, deprecate");
  zoo->require_subcommand(1);
  register_render(*zoo, context);
  register_tag(*zoo, context);
  register_deprecate(*zoo, context);
}

}  // namespace oscar
