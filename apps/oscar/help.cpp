// SPDX-License-Identifier: MIT
#include "help.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <sstream>
#include <utility>

namespace oscar {
namespace {

constexpr std::size_t kColumn = 28, kWidth = 110;  // characters: where descriptions begin, where lines end

constexpr std::array<std::pair<const char*, const char*>, 17> kExamples{{
    {"dump", "oscar dump --model Qwen3-8B --text calibration.txt --out dump"},
    {"fit",
     "oscar fit --model Qwen3-8B --text calibration.jsonl --out set\n"
     "oscar fit --model hf://Qwen/Qwen3-8B --out set\n"
     "oscar fit --dump dump --target sglang-v3 --out set\n"
     "torchrun --no-python --nproc-per-node 8 oscar fit --dump dump --recipe oscar --out set"},
    {"verify",
     "oscar verify set --model Qwen3-8B --text held_out.txt --compare naive,hadamard --report report.html\n"
     "oscar verify k_rotation.pt --dump dump"},
    {"serve-env",
     "oscar serve-env set\n"
     "oscar serve-env set -- python -m sglang.launch_server --model-path Qwen3-8B --kv-cache-dtype int2"},
    {"serve-check",
     "oscar serve-check set --url http://localhost:30000 --model Qwen3-8B\n"
     "oscar serve-check --url http://localhost:30000 --model Qwen3-8B --save-long bf16.json\n"
     "oscar serve-check set --url http://localhost:30000 --model Qwen3-8B --long bf16.json"},
    {"publish", "oscar publish set --zoo my-zoo --name me/my-model:v1"},
    {"pull",
     "oscar pull me/my-model --zoo https://example.org/zoo\n"
     "oscar pull hf://ORG/REPO/FOLDER --out set"},
    {"inspect", "oscar inspect set"},
    {"convert",
     "oscar convert set set.safetensors\n"
     "oscar convert theirs set --to set"},
    {"zoo list",
     "oscar zoo list\n"
     "oscar zoo list 'Qwen/*' --zoo https://example.org/zoo"},
    {"completion", "source <(oscar completion bash)"},
    {"help",
     "oscar help zoo list\n"
     "oscar help --man | man -l -"},
    {"version", "oscar version"},
}};

/// What goes in stands first and what is seldom changed last; the others as they were added.
int rank_of(const std::string& group) {
  constexpr std::array kLast{"Verdict", "Output", "Several processes", "Transfer", "Backend", "Other"};
  if (group == "Input") return -1;
  const auto* const found = std::ranges::find(kLast, group);
  return found == kLast.end() ? 0 : 1 + static_cast<int>(found - kLast.begin());
}

std::vector<std::string> ordered_groups(const CLI::App& app) {
  std::vector<std::string> groups = app.get_groups();
  std::erase(groups, "");
  std::ranges::stable_sort(groups, {}, rank_of);
  return groups;
}

std::string entry(const std::string& left, const std::string& description) {
  const bool beside = left.size() + 4 <= kColumn;
  const std::string gap = beside ? std::string(kColumn - 2 - left.size(), ' ') : "\n" + std::string(kColumn, ' ');
  return "  " + left + gap + wrapped(description, kColumn) + "\n";
}

/// " N" for numbers, " a|b" for choices, " FILE ...": what stands behind an option's name.
std::string value_of(const CLI::Option& option) {
  if (option.get_type_size() == 0) return "";
  const std::vector<std::string> choices = choices_of(option);
  std::string type;
  for (const std::string& choice : choices) type += (type.empty() ? "" : "|") + choice;
  if (choices.empty()) {
    const std::string full = option.get_type_name();
    const bool plain =
        full.starts_with("INT") || full.starts_with("UINT") || full.starts_with("FLOAT") || full.starts_with("TEXT");
    type = plain ? full.substr(0, full.find(':')) : full;
    if (type == "INT" || type == "UINT") type = "N";
    if (type == "FLOAT") type = "X";
  }
  if (option.get_expected_max() == CLI::detail::expected_max_vector_size) type += " ...";
  return " " + type;
}

/// The description, and in brackets the default and the environment variable.
std::string description_of(const CLI::Option& option) {
  std::string fallback = option.get_type_size() == 0 ? "" : option.get_default_str();
  if (fallback.starts_with("[") && fallback.ends_with("]")) fallback = fallback.substr(1, fallback.size() - 2);
  const std::string variable = option.get_envname();
  std::string more = option.get_required() ? "required" : fallback;
  if (!variable.empty()) more += (more.empty() ? "" : "; ") + variable;
  return option.get_description() + (more.empty() ? "" : " [" + more + "]");
}

OptionText text_of(const CLI::Option& option, bool positional) {
  std::string name = option.get_name(positional, !positional);
  if (const std::size_t flag = name.find("{false}"); flag != std::string::npos) name.erase(flag, 7);
  const std::string value = positional ? "" : value_of(option);
  return {value == " " ? name : name + value, description_of(option)};
}

}  // namespace

std::string wrapped(const std::string& text, std::size_t indent) {
  std::istringstream words(text);
  std::string out, word;
  std::size_t column = indent;
  while (words >> word) {
    const bool fits = column + 1 + word.size() <= kWidth;
    if (!out.empty()) out += fits ? " " : "\n" + std::string(indent, ' ');
    column = out.empty() || fits ? column + 1 + word.size() : indent + word.size();
    out += word;
  }
  return out;
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string out = app->get_description() + "\n\n" + make_usage(app, std::move(name));
  const auto section = [&](const std::string& title, bool positional) {
    std::string entries;
    for (const CLI::Option* option : app->get_options()) {
      const bool listed =
          positional ? option->get_positional() : option->nonpositional() && option->get_group() == title;
      if (!listed) continue;
      const OptionText text = text_of(*option, positional);
      entries += entry(text.name, text.description);
    }
    if (!entries.empty()) out += "\n" + title + ":\n" + entries;
  };
  section("Arguments", true);
  for (const std::string& group : ordered_groups(*app)) section(group, false);
  return out + make_subcommands(app, mode) + "\n" + make_footer(app);
}

std::vector<OptionText> option_texts(const CLI::App& app) {
  std::vector<OptionText> texts;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) texts.push_back(text_of(*option, true));
  }
  for (const std::string& group : ordered_groups(app)) {
    for (const CLI::Option* option : app.get_options()) {
      if (option->nonpositional() && option->get_group() == group) texts.push_back(text_of(*option, false));
    }
  }
  return texts;
}

std::string usage_of(const CLI::App& command) {
  std::string usage = " [OPTIONS]";
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = option->get_name(true, false);
    const bool many = option->get_expected_max() == CLI::detail::expected_max_vector_size;
    usage += option->get_required() ? " " + name : " [" + name + "]";
    if (many) usage += " ...";
  }
  return usage + (command.get_require_subcommand_min() > 0 ? " COMMAND" : "");
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return entry(command->get_name(), command->get_description());
}

std::string examples_of(const std::string& command) {
  const auto* const found =
      std::ranges::find(kExamples, command, [](const auto& row) { return std::string(row.first); });
  return found == kExamples.end() ? "" : found->second;
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  std::string type = option.get_type_name();
  char separator = '|';
  if (const std::size_t open = type.find('{'); open != std::string::npos) {
    type = type.substr(open + 1, type.find('}', open) - open - 1);
    separator = ',';
  } else if (type.find('|') == std::string::npos ||
             std::ranges::any_of(type, [](char c) { return c >= 'A' && c <= 'Z'; })) {
    return {};
  }
  std::vector<std::string> choices;
  std::istringstream list(type);
  for (std::string choice; std::getline(list, choice, separator);) choices.push_back(choice);
  return choices;
}

}  // namespace oscar
