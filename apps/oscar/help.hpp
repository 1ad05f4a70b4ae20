// SPDX-License-Identifier: MIT
// How --help looks: groups from what goes in to what comes out, one entry an option, its default in brackets, examples
// at the foot. Non-goal: what options there are.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace oscar {

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_subcommand(const CLI::App* command) const override;
};

inline constexpr char kAboutNumbers[] =
    "Counts (N) may be written as 30k (thousands), 2M or 1G, sizes as 500M or 10G (powers of 1024).";
inline constexpr char kAboutExitCodes[] =
    "0 done, 1 failed, 2 wrong usage, 3 verify rejected the set, 130 interrupted.";

/// One entry of a help text: "--threads N", and what stands behind it.
struct OptionText {
  std::string name, description;
};
/// Arguments, then options by their groups, in the order of help.
[[nodiscard]] std::vector<OptionText> option_texts(const CLI::App& app);

/// " NAME [OPTIONS]": what stands behind a command's name in its usage.
[[nodiscard]] std::string usage_of(const CLI::App& command);

/// Lines that fit a terminal, the second and all others with `indent` spaces before them.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t indent);

/// Ready-made command lines of a command, with its full name ("zoo tag"); empty: none.
[[nodiscard]] std::string examples_of(const std::string& command);

/// The words that an option takes, where its type is a list of them ("a|b", or CLI11's own for IsMember); else none.
[[nodiscard]] std::vector<std::string> choices_of(const CLI::Option& option);

}  // namespace oscar
