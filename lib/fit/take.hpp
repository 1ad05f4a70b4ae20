// SPDX-License-Identifier: MIT
// Takes all that a fit needs of its data: one walk over the rows of each layer for the sums of all recipes, and further
// looks at the same layer for those that need finished sums, for rows and for samples.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "dump/source.hpp"
#include "fit/costs.hpp"
#include "fit/options.hpp"
#include "fit/part_fits.hpp"
#include "fit/partial_folder.hpp"
#include "kernels/backend.hpp"
#include "model/run/runner.hpp"
#include "moments/statistics.hpp"

namespace oscar {

/// What is taken of each layer.
struct TakeOptions {
  std::set<Moment> moments;
  Windows windows;
  /// Whether the coded cache is fitted to it: reads of values are summed, and costs or damage kept.
  bool coded = false;
  std::int64_t sample_rows = 4096;    // about so many rows are kept
  std::set<int> uncentred;            // layers whose keys keep their mean
  std::map<int, Rotary> rotary;       // layers whose keys the coded cache stores before RoPE
  std::optional<SampleOptions> clip;  // how sequences for clip ratios are drawn; none: they are not
  Json recipe = Json::object();       // Statistics::recipe
};

/// measure: weighs layers and sides against each other where no costs are known. folder: where layers that are there
/// already are taken from, and the others kept, a file of statistics each; or null. Throws DataError for a layer
/// without tokens, for data that is too short or heads that the coded cache does not take, and NumericalError for
/// damage that is no number.
[[nodiscard]] Statistics take(QkvSource& source, const TakeOptions& options, const ErrorCosts& costs,
                              const MeasureDamage& measure, const PartialFolder* folder, Backend& backend,
                              Status& status);

/// Data for a fit: a dump, or a model that runs while it is watched.
struct FitData {
  QkvSource& source;
  /// The model, and what it reads; null and empty for a dump.
  ModelRunner* runner = nullptr;
  std::span<const TokenSequence> sequences = {};
  /// Over how many positions the sequences are spread; 0: each begins at 0.
  int context = 0;
  /// Why the coded cache cannot take it; empty: it can.
  std::string uncodable = {};
  /// Whether what is taken outlives this fit: other parts of the data, or other recipes, then need its rows.
  bool outlives = true;
};

/// Why the coded cache cannot take heads of this size; empty: it can.
[[nodiscard]] std::string why_not_coded(int layer_id, int key_dim, int value_dim);
/// Why it cannot take layers of a model, or of a dump; empty: it can. layers: empty for all that a set
/// covers.
[[nodiscard]] std::string why_not_coded(const ModelConfig& config, std::vector<int> layers);
[[nodiscard]] std::string why_not_coded(QkvSource& dump);

/// Member of Statistics::recipe: why the coded cache could not be fitted.
inline constexpr const char* kNotCoded = "not_coded";

/// Throws DataError where recipe coded asks for it all the same.
[[noreturn]] void throw_not_coded(const std::string& why);

/// Opens the folder where layers of work that this record describes are kept; may return null. An empty function keeps
/// nothing.
using OpenPartial = std::function<const PartialFolder*(const Json& record)>;

/// Takes what the parts of a set need: asks a model what errors cost, and a dump what they do to attention. Throws
/// UsageError as plan_parts() does, DataError where recipe coded is asked for and cannot be fitted, and what the other
/// take() throws.
[[nodiscard]] Statistics take(const FitData& data, const FitOptions& options, const OpenPartial& partial,
                              Backend& backend, Status& status);

}  // namespace oscar
