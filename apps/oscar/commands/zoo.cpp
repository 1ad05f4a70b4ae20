// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/text.hpp"
#include "commands/commands.hpp"
#include "console.hpp"
#include "options.hpp"
#include "zoo/list.hpp"

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
                                         : "none of the " + plural(static_cast<std::int64_t>(list.all), "set") +
                                               " fits: " + list.zoo);
  }
  emit_json(context, {{"zoo", list.zoo}, {"sets", list.rows}});
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
