// SPDX-License-Identifier: MIT
// oscar fit --stats and --save-stats

#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "base/atomic_file.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "commands/fit_command.hpp"
#include "console.hpp"
#include "fit/statistics_fit.hpp"
#include "rotation/formats.hpp"
#include "rotation/manifest.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

bool reads_data(const FitCommand& command) { return !command.dump.empty() || !command.input.model.empty(); }

/// Statistics may be replaced by statistics; somebody's weights, or letters, may not.
void require_statistics(const std::filesystem::path& file) {
  try {
    if (SafetensorsFile(file).metadata().at("schema") == "oscar.statistics.v1") return;
  } catch (const std::exception&) {  // whatever it is, we did not write it
  }
  throw UsageError("refusing to replace a file that does not hold statistics of oscar", "--save-stats " + file.string(),
                   "name another file, or remove it yourself");
}

void check(const FitCommand& command) {
  const bool saves = !command.save_stats.empty(), fits = !command.out.empty();
  if (reads_data(command) && fits) {
    throw UsageError("statistics are of a part of the data, a rotation set is of all of it", "--out",
                     "save the statistics of each part, then give them to --stats with --out");
  }
  if (reads_data(command) && !saves) {
    throw UsageError("--stats beside data is a second pass over a part of it", "--save-stats",
                     "say where its statistics go: --save-stats FILE");
  }
  if (saves && !command.force && std::filesystem::exists(command.save_stats)) {
    throw UsageError("there is such a file already", "--save-stats " + command.save_stats.string(),
                     "name another, or give --force to replace it");
  }
  if (saves && std::filesystem::is_regular_file(command.save_stats)) require_statistics(command.save_stats);
  if (!reads_data(command) &&
      !(command.input.layers.empty() && command.input.texts.empty() && command.input.tokens.empty())) {
    throw UsageError("--stats alone looks at no text, tokens or choice of layers", "oscar fit",
                     "leave --text, --tokens and --layers out");
  }
  if (!reads_data(command) && command.resume) {
    throw UsageError("statistics are added up at once, with nothing to go on with", "--resume", "leave it out");
  }
  if (!reads_data(command) && command.stats.empty()) {
    throw UsageError("nothing to take statistics of", "--save-stats", "give --dump, --model or --stats");
  }
  if (!reads_data(command) && !saves && !fits) {
    throw UsageError("no folder for the rotation set", "--stats", "give --out DIR, or --save-stats FILE to merge");
  }
}

/// Writes the file and tells people and --json, also the time since `start`.
void save(const Statistics& statistics, const FitCommand& command, std::chrono::steady_clock::time_point start,
          Context& context) {
  write_statistics(command.save_stats, statistics);
  std::int64_t tokens = 0;
  for (const CalibrationData& part : statistics.data) tokens += part.tokens;
  const double seconds = seconds_since(start);
  const std::size_t parts = statistics.data.size();
  context.status->notice(fmt::format("statistics of {}, {} in {}, {:.2f} s: wrote {}",
                                     plural(static_cast<std::int64_t>(statistics.layers.size()), "layer"),
                                     plural(tokens, "token"), plural(static_cast<std::int64_t>(parts), "part"), seconds,
                                     command.save_stats.string()));
  if (!command.out.empty()) return;  // what is fitted will be told
  emit_json(context, {{"statistics", command.save_stats.string()},
                      {"layers", statistics.layers.size()},
                      {"parts", parts},
                      {"tokens", tokens},
                      {"seconds", seconds}});
}

/// With --resume, layers are kept as soon as they are taken, and those that are there already are not
/// taken again.
void take_and_save(const FitCommand& command, const Statistics* first_pass, Context& context) {
  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<Backend> backend = make_backend(context.common.device, *context.status);
  FitInput input(command, context);
  Status& status = *context.status;
  std::optional<PartialFolder> kept;
  if (command.resume) {
    Json record = fit_record(input, command);
    record["first_pass"] = first_pass != nullptr ? query_moments_sha256(*first_pass) : "";
    kept.emplace(statistics_folder(command), record, PartialFolder::Earlier::kUse, &status);
  }
  const PartialFolder* const folder = kept ? &*kept : nullptr;
  save(take_statistics(input.source(), command.fit, first_pass, folder, *backend, status), command, start, context);
  if (kept) kept->remove();
}

}  // namespace

std::filesystem::path statistics_folder(const FitCommand& command) {
  std::filesystem::path folder = command.save_stats;
  return folder += ".partial";
}

void fit_in_parts(FitCommand& command, Context& context) {
  check(command);
  if (command.recipe_by_default) command.fit.recipe = "oscar";
  const RotationFormats formats = parse_rotation_formats(command.formats);
  if (!command.out.empty()) {
    const AtomicFolder writable(command.out, replaceable_set(command.force));  // fails now rather than after the work
  }
  const auto start = std::chrono::steady_clock::now();
  std::optional<Statistics> given;
  if (!command.stats.empty()) given = read_statistics(command.stats);
  const Statistics* first_pass = given ? &*given : nullptr;
  if (reads_data(command)) return take_and_save(command, first_pass, context);
  if (!command.save_stats.empty()) save(*given, command, start, context);
  if (command.out.empty()) return;
  const std::unique_ptr<Backend> backend = make_backend(context.common.device, *context.status);
  Times times{.startup = seconds_since(context.started)};
  const FitResult result = fit(*given, command.fit, *backend, *context.status);
  const auto fitted = std::chrono::steady_clock::now();
  write_rotation_set(command.out, result.set, formats, command.force);
  times.writing = seconds_since(fitted);
  report(result, times, command, *backend, context);
}

}  // namespace oscar
