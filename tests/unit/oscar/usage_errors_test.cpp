// SPDX-License-Identifier: MIT
// Each kind of error that CLI11 throws while it parses, and what users read.
#include "usage_errors.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "numbers.hpp"

namespace oscar {
namespace {

struct Program {
  CLI::App app{"A program", "oscar"};
  OptionFile config;
  int threads = 0;
  double share = 0;
  bool force = false;
  std::string path, kind, other;

  Program() {
    app.set_config("--config", "", "A file");
    app.require_subcommand(1);
    app.fallthrough();
    CLI::App* fit = app.add_subcommand("fit", "Fits");
    fit->add_option("PATH", path, "What is read")->required();
    fit->add_option("--threads", threads, "Threads")->check(CLI::Range(0, 8));
    fit->add_option("--share", share, "A share");
    CLI::Option* kind_option = fit->add_option("--kind", kind, "A kind")->check(CLI::IsMember({"one", "two"}));
    CLI::Option* force_option = fit->add_flag("--force", force, "Force")->disable_flag_override();
    fit->add_option("--needs", other, "Needs another")->needs(kind_option);
    fit->add_option("--excludes", other, "Excludes another")->excludes(force_option);
    take_counts(*fit);
  }

  UsageError error_of(std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());
    try {
      app.parse(arguments);
    } catch (const CLI::ParseError& error) {
      return usage_error(app, error, config);
    }
    return {"no error", "", ""};
  }
};

std::string words(const UsageError& error) {
  return std::string(error.what()) + " | " + error.where() + " | " + error.remedy();
}

}  // namespace

TEST_CASE("every error of the parser is told in our words") {
  struct Case {
    std::vector<std::string> arguments;
    std::string expected;
  };
  const std::vector<Case> cases{
      {{"fit", "p", "--kind", "one", "--kind", "two"},
       "--kind takes one value and was given one, two | oscar fit | give it once, or see oscar fit --help"},
      {{"fit", "p", "--kind"}, "--kind needs a value | oscar fit | one of: one, two, or see oscar fit --help"},
      {{"fit", "p", "--force=7"}, "--force takes no value | oscar fit | leave out what stands behind \"=\""},
      {{"fit", "p", "--threads", "many"},
       "--threads: \"many\" is not a number from 0 to 8 | oscar fit | oscar fit --help"},
      {{"fit", "p", "--share", "half"}, "--share: \"half\" is not a number | oscar fit | oscar fit --help"},
      {{"fit", "p", "--threads", "9"}, "--threads: \"9\" is not a number from 0 to 8 | oscar fit | oscar fit --help"},
      {{"fit", "p", "--kind", "tow"},
       "--kind: unknown value \"tow\" | oscar fit | did you mean two? use one of: one, two"},
      {{"fit"}, "PATH is required: What is read | oscar fit | oscar fit --help"},
      {{}, "no command given | oscar | oscar COMMAND --help"},
      {{"fit", "p", "--needs", "x"}, "--needs requires --kind | oscar fit | give --kind too, or leave --needs out"},
      {{"fit", "p", "--excludes", "x", "--force"}, "--force excludes --excludes | oscar fit | leave one of them out"},
      {{"fit", "p", "q"}, "unexpected argument \"q\" | oscar fit | oscar fit --help"},
      {{"fit", "p", "--shar", "1"}, "unknown option --shar | oscar fit | --share, or see oscar fit --help"},
      {{"fti"}, "unknown command \"fti\" | oscar | fit, or see oscar --help"},
      {{"fit", "p", "--config", "nowhere.toml"},
       "the configuration file cannot be read | nowhere.toml | name a TOML file that is there"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.expected);
    CHECK(words(Program().error_of(c.arguments)) == c.expected);
  }
}

TEST_CASE("kinds that our commands do not cause are told without the library's words, too") {
  Program program;
  for (const CLI::ParseError& error :
       std::vector<CLI::ParseError>{CLI::ConfigError::Extras("fit.x"), CLI::ConfigError::NotConfigurable("help"),
                                    CLI::InvalidError("fit"), CLI::HorribleError("you should not see this"),
                                    CLI::RequiredError::Option(1, 1, 0, "a"), CLI::ConversionError::TrueFalse("quiet"),
                                    CLI::ConversionError::TooManyInputsFlag("quiet"), CLI::RuntimeError(7)}) {
    const std::string told = words(usage_error(program.app, error, program.config));
    CAPTURE(told);
    for (const char* theirs : {"INI", "should not see", "Requires", "Exactly", "Too many", "Should be", "Runtime"}) {
      CHECK(told.find(theirs) == std::string::npos);
    }
    CHECK(told.find(" | ") + 3 < told.size());
  }
}

}  // namespace oscar
