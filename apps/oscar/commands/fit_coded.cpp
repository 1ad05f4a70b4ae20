// SPDX-License-Identifier: MIT
// oscar fit --recipe coded
#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "base/atomic_file.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "coded/coded_set.hpp"
#include "commands/fit_command.hpp"
#include "fit/coded_data.hpp"
#include "rotation/manifest.hpp"

namespace oscar {
namespace {

void check_usage(const FitCommand& command) {
  const FitOptions& fit = command.fit;
  const auto refuse = [](bool given, const char* option, const char* why) {
    if (given) throw UsageError(std::string("recipe coded ") + why, option, "leave it out, or fit another recipe");
  };
  refuse(fit.target != "oscar" && fit.target != "any", "--target",
         "makes a cache of its own, which only oscar and any read");
  refuse(!command.dump.empty() && command.context > 0, "--context",
         "takes a dump's keys from the positions where they are");
  refuse(command.resume && !command.stats.empty(), "--resume",
         "adds statistics up at once, with nothing to go on with");
}

Json to_json(const CodedSet& set, const std::filesystem::path& out, double seconds) {
  Json layers = Json::array();
  for (const CodedLayer& layer : set.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"key_bits", bits_of(layer.key)},
                      {"value_bits", bits_of(layer.value)},
                      {"key_damage", layer.key.damage},
                      {"value_damage", layer.value.damage}});
  }
  return {{"rotation_set", out.string()},
          {"recipe", set.recipe},
          {"bits", bits_of(set)},
          {"tokens", set.calibration.tokens},
          {"sequences", set.calibration.sequences},
          {"layers", std::move(layers)},
          {"seconds", {{"fit", seconds}}}};
}

}  // namespace

CodedSet coded_set_of(const FitCommand& command, const CodedData& data, Backend& backend) {
  CodedSet set = fit_coded(data, command.fit.bits, coded_scope_from_name(command.fit.scope), backend);
  set.recipe = {{"name", "coded"}, {"target", command.fit.target}};
  set.recipe.update(data.recipe);
  return set;
}

void write_coded_fit(const FitCommand& command, const CodedSet& set, double seconds, const Backend& backend,
                     Context& context) {
  write_coded_set(command.out, set, command.force);
  context.status->notice(fmt::format("fitted {} on {} in {:.2f} s: {:.3f} bits a value, {}",
                                     plural(static_cast<std::int64_t>(set.layers.size()), "layer"),
                                     plural(set.calibration.tokens, "token"), seconds, bits_of(set),
                                     backend.description()));
  context.status->notice("wrote " + command.out.string());
  emit_json(context, to_json(set, command.out, seconds));
}

namespace {

/// What is there may be replaced if it is such a file.
void require_coded_data_file(const FitCommand& command) {
  const std::filesystem::path& file = command.save_stats;
  if (!std::filesystem::exists(file)) return;
  const std::string option = "--save-stats " + file.string();
  if (!command.force) {
    throw UsageError("there is such a file already", option, "name another, or give --force to replace it");
  }
  try {
    if (is_coded_data(file)) return;
  } catch (const DataError&) {  // whatever it is, we did not write it
  }
  throw UsageError("refusing to replace a file that does not hold statistics for the coded cache", option,
                   "name another file, or remove it yourself");
}

void save_coded(const FitCommand& command, const CodedData& data, double seconds, Context& context) {
  write_coded_data(command.save_stats, data);
  context.status->notice("wrote " + command.save_stats.string());
  if (!command.out.empty()) return;  // what is fitted will be told
  emit_json(context, {{"statistics", command.save_stats.string()},
                      {"layers", data.layers.size()},
                      {"parts", data.data.size()},
                      {"tokens", calibration_of(data.data).tokens},
                      {"seconds", seconds}});
}

/// Writes the statistics, the set, or both, and tells people and --json, also the time since `start`.
void finish_coded(const FitCommand& command, const CodedData& data, std::chrono::steady_clock::time_point start,
                  Backend& backend, Context& context) {
  if (!command.save_stats.empty()) save_coded(command, data, seconds_since(start), context);
  if (command.out.empty()) return;
  write_coded_fit(command, coded_set_of(command, data, backend), seconds_since(start), backend, context);
}

}  // namespace

void fit_coded_set(const FitCommand& command, Context& context) {
  check_usage(command);
  const bool saves = !command.save_stats.empty();
  if (command.out.empty() && !saves) throw UsageError("no folder for the set", "oscar fit", "give --out DIR");
  if (saves) require_coded_data_file(command);
  if (!command.out.empty()) {
    const AtomicFolder writable(command.out, replaceable_set(command.force));  // fails now rather than after the work
  }
  const std::unique_ptr<Backend> backend = start_backend(context);
  const auto started = std::chrono::steady_clock::now();
  if (!command.stats.empty()) return finish_coded(command, read_coded_data(command.stats), started, *backend, context);
  FitInput input(command, context);
  input.wait_until_ready();
  finish_coded(command, coded_data_of(command, input, *backend, *context.status), started, *backend, context);
  if (command.resume) PartialFolder::remove(coded_partial_folder(command));
}

}  // namespace oscar
