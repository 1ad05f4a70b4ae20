// SPDX-License-Identifier: MIT
// What every command gets: the common options, and where its talk goes. Options of several commands, how their values
// are written, and what a command may not write.
//
// The command line as users meet it: the options that every command has, help, environment variables, and what is wrong
// with a line that cannot be parsed. CLI11 does the work; its words stand in help and errors.
// It also declares one function per command, in pipeline order. Each only binds options and sets a callback; the
// callback opens files and calls the library.
//
// The options by which a command is told to run a model on text: --model, --text or --tokens, how much of it, and
// probes.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/json.hpp"
#include "base/status.hpp"
#include "model/config/config.hpp"
#include "model/run/runner.hpp"
#include "model/tokenizer/tokens.hpp"
#include "remote/hub.hpp"

namespace oscar {

/// Options that mean the same in every command that has them.
struct CommonOptions {
  std::string device = "auto";
  int threads = 0;
  bool quiet = false;
  bool verbose = false;
  std::string progress = "auto";    // or plain, none
  bool json_to_stdout = false;      // --json without FILE
  std::filesystem::path json_file;  // --json FILE
};

struct Context {
  /// About when the process began.
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  CommonOptions common;
  /// The command line, for reports (command_text).
  std::vector<std::string> arguments;
  /// What addresses lead to; registered by main.
  NetworkPlaces network;
  /// Set by main once the options are known.
  std::unique_ptr<Status> status;
  /// What the command's callback asks main to return; 0 unless verify rejects.
  int exit_code = 0;
};

/// Finite numbers from 0 on, above 0, and any. CLI11's own let NaN pass.
extern const CLI::Validator kNonNegative, kPositive, kFinite;

/// Writes "30k" out as 30000: k, M and G (or B) stand for thousands, millions and milliards; case does not count.
extern const CLI::Validator kCount;

/// Adds --json [FILE].
void add_json_option(CLI::App& command, Context& context);
/// Lets a folder that is read be an address, too: hf://ORG/NAME, http:// or https://.
CLI::Option* allow_address(CLI::Option* option);
/// Whether the command line or a file gives the option: what the environment says is for all commands.
bool is_given(const CLI::Option& option);
/// Throws UsageError for the first of these options that is given: why nothing takes it.
void refuse_given(const CLI::App& command, std::initializer_list<const char*> names, const char* why,
                  const char* remedy = "leave it out");
/// Adds --timeout.
void add_timeout_option(CLI::App& command, double& seconds);
/// Sends a command's machine-readable result where --json says; does nothing without --json.
void emit_json(const Context& context, const Json& document);
/// "0-3,7" -> {0, 1, 2, 3, 7}. Throws UsageError.
[[nodiscard]] std::vector<int> parse_layers(const std::string& text);
/// Lines of at most `width` characters.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t width);

/// Says that the option names a file or folder that the command writes; returns it.
CLI::Option* writes(CLI::Option* option);

/// Throws UsageError if what the command line asks to be written
///   - is something that the command reads, or a folder that holds it,
///   - is a file that exists in a folder that the command reads, or any file in one whose manifest lists all its files.
/// After parsing, before any work. A zoo's folder is not only read: its page may be written there.
void refuse_to_write_inputs(const CLI::App& app);

/// --device, --threads, --config, --progress, --quiet, --verbose, --version; they work before and after the command's
/// name. Before any command is registered.
void add_common_options(CLI::App& app, Context& context);

/// Once all commands are registered: footers, numbers with units, and OSCAR_<NAME> for the options that every machine
/// sets its own way.
void finish_commands(CLI::App& app);

/// Parses and, through the commands' callbacks, runs. Throws what the command throws, UsageError for a wrong command
/// line, and CLI11's requests for help and version.
void parse_and_run(CLI::App& app, const std::vector<std::string>& arguments);

/// Returns the command that was named, as deep as it goes ("zoo tag"), or the program.
[[nodiscard]] CLI::App& active_command(CLI::App& app);

/// Tells the settings of the command that runs, as a configuration file would have them.
void tell_settings(CLI::App& app, Status& status);

/// "oscar verify 'my set' --model https://host/x": for a POSIX shell, without user names, passwords, queries and
/// fragments of addresses. arguments: those after the
/// program's name.
[[nodiscard]] std::string command_text(const std::vector<std::string>& arguments);

void register_dump(CLI::App& app, Context& context);
void register_fit(CLI::App& app, Context& context);
void register_verify(CLI::App& app, Context& context);
void register_serve_env(CLI::App& app, Context& context);
void register_serve_check(CLI::App& app, Context& context);
void register_publish(CLI::App& app, Context& context);
void register_pull(CLI::App& app, Context& context);
void register_inspect(CLI::App& app, Context& context);
void register_zoo(CLI::App& app, Context& context);
void register_convert(CLI::App& app, Context& context);

struct ModelInput {
  std::filesystem::path model, tokens;
  std::vector<std::filesystem::path> texts;
  std::string layers;  // as parse_layers reads it
  TokenLimits limits;
  std::string dtype = "auto";  // DecoderOptions::dtype
};

/// Adds --model, --model-dtype, --text, --tokens, --layers, --max-tokens, --seq-len, --sequences.
void add_model_input_options(CLI::App& command, ModelInput& input);

/// Opens --model where --device says, to compute in --model-dtype: auto takes a GPU if there is one that libtorch can
/// use, and says so if it falls back.
[[nodiscard]] std::unique_ptr<ModelRunner> open_input_model(const ModelInput& input, const Context& context);
/// Opens the model in float32, for commands that compare a model's predictions: rounding to bfloat16 moves them more
/// than a good cache does.
[[nodiscard]] std::unique_ptr<ModelRunner> open_exact_model(ModelInput input, const Context& context);

/// The sequences to run, cut to the model's context at most; of the built-in mix of texts if neither --text nor
/// --tokens was given. Throws UsageError if both were, and what the readers throw.
[[nodiscard]] std::vector<TokenSequence> read_sequences(const ModelInput& input, const ModelConfig& config,
                                                        Status& status);

// Files of probes: rows of token ids that end with an answer, and the lengths of the answers.
struct AnswerFiles {
  std::string option;  // "--needle"
  std::filesystem::path rows = {}, answers = {};
  std::int64_t most = 0;

  [[nodiscard]] bool given() const { return !rows.empty(); }
};

/// Adds --NAME and --NAME-answers, of files.option "--NAME", to a group of help, and --max-NAMEs to "More input"; none
/// goes without the others.
void add_answer_options(CLI::App& command, AnswerFiles& files, const char* rows_help, const char* answers_help,
                        const char* group);

/// Reads the first files.most rows (0: all), cut to the model's context, and the lengths of their answers. Reads
/// nothing if no file is given. Throws what the readers of tokens and of .npy files throw.
void read_answers(const AnswerFiles& files, const ModelConfig& config, std::vector<TokenSequence>& rows,
                  std::vector<int>& lengths);

}  // namespace oscar
