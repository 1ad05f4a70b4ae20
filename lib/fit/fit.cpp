// SPDX-License-Identifier: MIT
#include "fit/fit.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "fit/take.hpp"

namespace oscar {
namespace {

constexpr int kHeads = 8, kDim = 128;
constexpr std::int64_t kTokens = 65536;  // 128 MiB, so that every reader gets some
constexpr int kOpenFiles = 1000;         // chunks of layers that are read and sampled side by side, three files each
/// From this share of the energy of keys on, their mean is what errors follow, and users are told.
constexpr double kMostOfEnergy = 0.5;

void require_same_data(const Statistics& statistics) {
  for (const LayerStatistics& layer : statistics.layers) {
    const LayerStatistics& first = statistics.layers.front();
    if (layer.first_data == first.first_data) continue;
    throw DataError("this layer was taken of other data than layer " + std::to_string(first.layer_id),
                    "--stats, layer " + std::to_string(layer.layer_id),
                    "give the statistics of every part for every layer");
  }
}

/// What a server kept knows no windows: its are any.
void require_windows(const Statistics& statistics, Windows windows) {
  const bool know =
      !statistics.recipe.empty() ||
      std::ranges::any_of(statistics.layers, [](const LayerStatistics& each) { return each.first.fisher.has_value(); });
  if (!know || statistics.windows == windows) return;
  throw UsageError(fmt::format("the statistics were taken with windows of {} and {} tokens", statistics.windows.sink,
                               statistics.windows.recent),
                   "--stats", "give the same --sink and --recent");
}

/// Why the coded cache does not take what the statistics are of; empty: it does.
std::string why_not_coded_to(const Statistics& statistics) {
  if (statistics.recipe.contains(kNotCoded)) return statistics.recipe[kNotCoded];
  for (const LayerStatistics& layer : statistics.layers) {
    std::string why = why_not_coded(layer.layer_id, layer.key_dim, layer.value_dim);
    if (!why.empty()) return why;
  }
  return "";
}

/// What the statistics lack for the coded cache; empty: nothing.
std::string lacking_for_coded(const Statistics& statistics) {
  for (const LayerStatistics& layer : statistics.layers) {
    const AdditiveMoments& sums = layer.first;
    const bool all = sums.fisher && sums.fisher->value.count > 0 && sums.sums.contains(Moment::kQqt) &&
                     sums.sums.contains(Moment::kVtv);
    if (layer.key_rows.empty()) return "it needs rows, and these statistics keep none";
    if (!all) return "it needs sums of fisher, qqt and vtv, which these statistics do not all have";
  }
  return "";
}

/// Whether each part is made that can be, since nobody named one.
bool for_all_readers(const FitOptions& options) { return options.recipe == "auto" && options.readers.empty(); }

/// The parts that can be fitted to the statistics.
FitPlan plan_for(const Statistics& statistics, const FitOptions& options, Status& status) {
  const auto leave_out = [&](const std::string& part, const std::string& lack) {
    const std::string text = "part " + part + " is left out: " + lack;
    if (for_all_readers(options)) return status.notice(text);
    throw DataError("part " + part + " cannot be fitted: " + lack, "--stats",
                    "take the statistics with this recipe's options, by oscar fit --save-stats");
  };
  const std::string why = why_not_coded_to(statistics);
  FitPlan plan = plan_parts(options, why.empty());
  if (!why.empty() && plan_parts({.recipe = options.recipe, .readers = options.readers}).coded) {
    if (plan.coded) throw_not_coded(why);
    status.notice("the coded cache, which vllm and transformers read, is left out: " + why);
  }
  if (plan.coded) {
    if (const std::string lack = lacking_for_coded(statistics); !lack.empty()) {
      leave_out(kCodedName, lack);
      plan = plan_parts(options, false);
    }
  }
  for (auto& [part, recipe] : plan.rotations) {
    Recipe alike = recipe;
    alike.key_objective = Moment::kQqt;
    if (options.recipe != "auto" || lacking(statistics, recipe).empty() || !lacking(statistics, alike).empty())
      continue;
    recipe = alike;
    status.notice("part " + part + " weighs all queries and keys alike: the statistics have no sums of fisher");
  }
  std::erase_if(plan.rotations, [&](const auto& part) {
    const std::string lack = lacking(statistics, part.second);
    if (!lack.empty()) leave_out(part.first, lack);
    return !lack.empty();
  });
  if (plan.coded || !plan.rotations.empty()) return plan;
  throw DataError("the statistics do not suffice for any part", "--stats", "take them by oscar fit --save-stats");
}

/// Throws UsageError for a reader that was named and can read no part: some of what it cannot read shows only in what
/// was fitted.
void require_parts_for(const Set& set, const std::vector<std::string>& named) {
  const std::map<std::string, std::string> parts = parts_of_readers(set);
  for (const std::string& name : named) {
    if (parts.contains(name)) continue;
    std::string why;
    for (const auto& [part, rotations] : set.rotations) {
      why += (why.empty() ? "" : "; ") + part + ": " + beyond_reader(reader_from_name(name, "--for"), rotations);
    }
    throw UsageError(name + " cannot read what would be written (" + why + ")", "--for " + name,
                     "leave that option out, or this reader");
  }
}

/// Records what rotations without means leave to be quantised, and warns if it is most of all.
void tell_of_mean_key(const Statistics& statistics, Set& set, Status& status) {
  const auto mean = largest_mean_key(statistics);
  const auto part = set.rotations.find(kRotationsName);
  if (!mean || part == set.rotations.end()) return;
  part->second.recipe["mean_key"] = {{"layer_id", mean->first}, {"share_of_energy", mean->second}};
  if (mean->second <= kMostOfEnergy) return;
  std::vector<std::string> names = readers_of_part(set, kRotationsName);
  if (names.empty()) return;
  std::ranges::reverse(names);
  status.notice(
      fmt::format("{} {} rotations without means, and in layer {} the mean key has {:.0f} % of the keys' energy: "
                  "expect errors that verify will reject",
                  joined(names, " and "), names.size() == 1 ? "reads" : "read", mean->first, 100 * mean->second));
}

}  // namespace

std::optional<std::string> too_few_tokens(const QkvSource& source, const FitPlan& plan) {
  const ModelIdentity& model = source.model();
  const std::int64_t tokens = source.calibration().tokens;
  if (tokens == 0 || model.head_dim == 0 || model.num_key_value_heads == 0 || plan.moments().empty()) return {};
  const bool per_head = plan.coded || std::ranges::any_of(plan.rotations, [](const auto& part) {
                          return part.second.key_per_head || part.second.value_per_head;
                        });
  const std::int64_t rows_per_token = per_head ? 1 : model.num_key_value_heads;
  const int channels = std::max(model.head_dim, model.value_dim);
  const std::int64_t rows = std::int64_t{kRowsPerChannel} * channels;
  const std::int64_t needed = (rows + rows_per_token - 1) / rows_per_token;
  if (tokens >= needed) return {};
  return fmt::format("{} {} few for the matrices of a {} with {}: {} or more are needed", plural(tokens, "token"),
                     tokens == 1 ? "is" : "are", per_head ? "head" : "layer", plural(channels, "channel"), needed);
}

std::optional<std::string> too_few_layers(const ModelIdentity& model, const std::vector<int>& layers) {
  std::vector<int> missing = model.cache_layers;
  for (int id = 0; id < model.num_layers && model.cache_layers.empty(); ++id) missing.push_back(id);
  std::erase_if(missing, [&](int id) { return std::ranges::count(layers, id) > 0; });
  if (missing.empty()) return {};
  return fmt::format(
      "the set will have nothing for {} of the model's layers ({}), so that no server may read it: take "
      "all layers, or statistics of some (--save-stats), and fit those of all together (--stats)",
      missing.size(), fmt::join(missing, ", "));
}

void warm_up(Backend& backend) {
  if (backend.work_shape().layers_per_batch == 1) return;
  make_room_for_files(kOpenFiles);
  const MatrixStack identity = MatrixStack::identity(kDim);
  (void)backend.eigh(identity);
  HeadsView rows{nullptr, DType::kBF16, kTokens, kHeads, kDim};
  const std::vector<std::byte> zeros(static_cast<std::size_t>(kTokens * rows.bytes_per_token()));
  rows.data = zeros.data();
  MatrixStack grams(kHeads, kDim), forms(kHeads, kDim);
  std::vector<double> weights(kHeads);
  backend.accumulate_grams({{rows}}, grams);
  const HeadsView few = rows.tokens(0, 1024);
  backend.accumulate_weighted_grams({{few}}, forms, {{few}}, grams, weights);
}

Set fit(const Statistics& statistics, const FitOptions& asked, Backend& backend, Status& status) {
  FitOptions options = asked;
  options.keys = statistics.recipe.value("keys", "after-rope");
  require_all_heads(statistics.heads);
  require_same_data(statistics);
  require_windows(statistics, options.windows);
  const FitPlan plan = plan_for(statistics, options, status);
  for (const LayerStatistics& layer : statistics.layers) plan.require_groups(layer.key_dim, layer.value_dim);
  Set set;
  set.model = statistics.model, set.calibration = calibration_of(statistics.data), set.windows = options.windows;
  set.recipe = {{"name", options.recipe}};
  set.readers = options.readers.empty() ? reader_names() : options.readers;
  if (plan.coded) set.coded = fit_coded(statistics, options.bits, coded_scope_from_name(options.scope), backend);
  std::exception_ptr failed;
  for (const auto& [part, recipe] : plan.rotations) {
    try {
      set.rotations.emplace(part, fit_rotations(statistics, recipe, options, backend, status));
    } catch (const NumericalError& error) {
      if (!for_all_readers(options)) throw;
      failed = std::current_exception();
      status.warning(fmt::format("part {} is left out: {}: {}", part, error.where(), error.what()));
    }
  }
  if (failed && !set.coded && set.rotations.empty()) std::rethrow_exception(failed);
  require_parts_for(set, options.readers);
  tell_of_mean_key(statistics, set, status);
  return set;
}

}  // namespace oscar
