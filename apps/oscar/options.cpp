// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/places.hpp"
#include "base/text.hpp"
#include "console.hpp"
#include "remote/transport.hpp"

namespace oscar {
namespace {

CLI::Validator number_that(bool (*holds)(double), const std::string& description) {
  return {[holds, description](const std::string& text) {
            double value = 0;
            std::int64_t whole = 0;  // CLI11 takes the largest number there is in place of one that is larger
            const std::from_chars_result read = std::from_chars(text.data(), text.data() + text.size(), whole);
            if (read.ec == std::errc::result_out_of_range) return "\"" + text + "\" is too large";
            const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && holds(value);
            return good ? std::string() : "\"" + text + "\" is not " + description;
          },
          ""};
}

/// What the type of an option that names a file or folder has in it (help shows it).
constexpr std::array<std::string_view, 5> kPathTypes{"FILE", "DIR", "SET", "KEY", ".gguf"};

/// Whether a file that is_ours() may be written there: one is, or an empty one, or none, or a device.
bool may_be_replaced(const fs::path& file, bool (*is_ours)(std::istream&)) {
  std::error_code error;
  if (!fs::is_regular_file(file, error) || fs::file_size(file, error) == 0) return !fs::is_directory(file, error);
  std::ifstream stream(file);
  return is_ours(stream);
}

bool is_json(std::istream& file) { return Json::accept(file); }
bool is_html(std::istream& file) {
  std::string begin(14, '\0');
  file.read(begin.data(), 14);
  return lower_case(begin) == "<!doctype html";
}

std::set<const CLI::Option*>& outputs() {
  static std::set<const CLI::Option*> options;
  return options;
}

struct Named {
  std::string option;
  fs::path path;  // as given
};

bool names_a_path(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const auto in_type = [&](std::string_view part) { return type.find(part) != std::string::npos; };
  return option.get_positional() || std::ranges::any_of(kPathTypes, in_type);
}

/// What the options of a command, and of the program, name: what is read and exists, and all that is written.
void collect_names(const CLI::App& command, std::vector<Named>& read, std::vector<Named>& written) {
  for (const CLI::Option* option : command.get_options()) {
    const bool output = outputs().contains(option);
    if (option->count() == 0 || !(output || names_a_path(*option))) continue;
    for (const std::string& text : option->results()) {
      std::error_code error;
      if (output && !text.empty() && text != "-") written.push_back({option->get_name(), text});
      if (!output && fs::exists(text, error)) read.push_back({option->get_name(), text});
    }
  }
  for (const CLI::App* named : command.get_subcommands()) collect_names(*named, read, written);
}

/// Why it may not be written; empty if it may.
std::string reason_against(const Named& output, const Named& input) {
  const std::string where = input.option + " " + input.path.string();
  if (fs::exists(output.path) && lies_in(output.path, input.path)) {
    return "it would be written over " + where + ", which this command reads";
  }
  if (!fs::is_directory(input.path) || !lies_in(input.path, output.path)) return "";
  if (input.option == "--zoo" && output.path.extension() == ".html") return "";
  if (fs::is_regular_file(output.path)) return "it would replace a file of " + where + ", which this command reads";
  if (!fs::exists(input.path / "manifest.json")) return "";
  return "the manifest of " + where + " lists all its files, and this would be another one";
}

}  // namespace

const CLI::Validator kNonNegative = number_that([](double x) { return x >= 0; }, "a number from 0 on");
const CLI::Validator kWindow = number_that([](double x) { return x >= 0 && x <= 1e9; }, "a number from 0 to 1e9");
const CLI::Validator kPositive = number_that([](double x) { return x > 0; }, "a number above 0");
const CLI::Validator kFinite = number_that([](double) { return true; }, "a finite number");
const CLI::Validator kCount =
    CLI::AsNumberWithUnit(
        std::map<std::string, std::int64_t>{{"k", 1000}, {"m", 1000000}, {"g", 1000000000}, {"b", 1000000000}})
        .description("");

CLI::Option* allow_address(CLI::Option* option) {
  const auto settle = [](std::string text) { return is_remote(text) ? remote_places().settle(text).string() : text; };
  return option->transform(CLI::Validator(
      [settle](std::string& text) {
        text = settle(text);
        return std::string();
      },
      ""));
}

bool is_given(const CLI::Option& option) {
  if (option.count() == 0 || option.get_envname().empty()) return option.count() > 0;
  std::string said = environment(option.get_envname().c_str());
  try {
    if (takes_count(option)) (void)kCount(said);
  } catch (const CLI::ValidationError&) {  // what is no number stays as it is
  }
  return option.results().front() != said;
}

bool takes_count(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return (type.starts_with("INT") || type.starts_with("UINT")) && option.get_type_size() > 0;
}

void refuse_given(const CLI::App& command, std::initializer_list<const char*> names, const char* why,
                  const char* remedy) {
  for (const char* name : names) {
    if (is_given(*command.get_option(name))) throw UsageError(why, name, remedy);
  }
}

void add_timeout_option(CLI::App& command, double& seconds) {
  command.add_option("--timeout", seconds, "Give up on a server that sends (next to) nothing for so many seconds")
      ->check(number_that([](double x) { return x >= 1 && x <= 3600; }, "a number from 1 to 3600"))
      ->capture_default_str()
      ->group("Transfer");
}

void add_json_option(CLI::App& command, Context& context) {
  const auto set_json = [&command, &context](const std::string& file) {
    if (!command.parsed()) return;
    context.common.json_to_stdout = file.empty() || file == "-";
    context.common.json_file = context.common.json_to_stdout ? "" : file;
  };
  writes(command.add_option_function<std::string>("--json", set_json, "Machine-readable result to FILE, or to stdout"))
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->group("Output");
}

void emit_json(const Context& context, const Json& document) {
  if (!context.common.json_file.empty()) write_json(context.common.json_file, document);
  if (!context.common.json_to_stdout) return;
  print(json_text(document));
}

void require_writable(const fs::path& file) {
  if (file.empty()) return;
  const AtomicFile probe(file);
  write_unsynced(probe.temporary_path(), "");
}

bool may_be_replaced_by_json(const fs::path& file) { return may_be_replaced(file, is_json); }

void require_json_target(const fs::path& file) {
  if (!may_be_replaced_by_json(file) && !fs::is_directory(file)) {
    throw UsageError("refusing to replace a file that is not JSON", "--json " + file.string(),
                     "name another file, or give --json last where it is to go to stdout");
  }
  require_writable(file);
}

void require_report_target(const fs::path& file) {
  if (!may_be_replaced(file, is_html) && !fs::is_directory(file)) {
    throw UsageError("refusing to replace a file that does not begin with <!doctype html>", "--report " + file.string(),
                     "name another file");
  }
  require_writable(file);
}

std::vector<int> parse_layers(const std::string& text) {
  std::vector<int> layers;
  std::istringstream parts(text.ends_with(',') ? text + "," : text);  // behind a comma something has to stand
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t dash = part.find('-');
    const std::optional<int> first = parse_number(part.substr(0, dash));
    const std::optional<int> last = dash == part.npos ? first : parse_number(part.substr(dash + 1));
    if (!first || !last || *last < *first || *last - *first > 100000) {
      throw UsageError("cannot read the layer list \"" + text + "\"", "--layers", "write it like 0-3,7");
    }
    for (int layer = *first; layer <= *last; ++layer) layers.push_back(layer);
  }
  return layers;
}

std::string wrapped(const std::string& text, std::size_t width) {
  std::istringstream words(text);
  std::string out;
  std::size_t column = 0;
  for (std::string word; words >> word; column += 1 + word.size()) {
    const bool fits = column + word.size() <= width;
    if (!fits) column = 0;
    out += (out.empty() ? "" : fits ? " " : "\n") + word;
  }
  return out;
}

CLI::Option* writes(CLI::Option* option) {
  outputs().insert(option);
  return option;
}

void refuse_to_write_inputs(const CLI::App& app) {
  std::vector<Named> read, written;
  collect_names(app, read, written);
  for (const Named& output : written) {
    // What is no file or folder (a terminal, a null device) cannot be lost.
    if (fs::exists(output.path) && !fs::is_directory(output.path) && !fs::is_regular_file(output.path)) continue;
    for (const Named& other : written) {
      if (&other == &output || !lies_in(output.path, other.path)) continue;
      throw UsageError("it would be in " + output.option + " " + output.path.string() + ", which is written, too",
                       other.option + " " + other.path.string(), "choose another output");
    }
    for (const Named& input : read) {
      const std::string against = reason_against(output, input);
      if (!against.empty())
        throw UsageError(against, output.option + " " + output.path.string(), "choose another output");
    }
  }
}

}  // namespace oscar
