// SPDX-License-Identifier: MIT
// What a fit is made of. The parts of a set: of the coded cache: the basis in which what errors cost adds up, and bits
// where they take away most of it. Of rotations: eigenproblems of the sums of each layer, and clip ratios by what they
// do to its samples. PartialFolder: what was taken of layers, until the whole is written: a folder with one file each,
// which work that ends early leaves to the next. ErrorCosts: what errors of keys and values cost a model, and on which
// texts it is asked. take(): all that a fit needs of its data: one walk over the rows of each layer for the sums of all
// recipes, and further looks at the same layer for those that need finished sums, for rows and for samples.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/files.hpp"
#include "base/json.hpp"
#include "base/status.hpp"
#include "dump/source.hpp"
#include "fit/options.hpp"
#include "kernels/backend.hpp"
#include "method/coded_levels.hpp"
#include "model/run/runner.hpp"
#include "moments/statistics.hpp"
#include "set/set.hpp"

namespace oscar {

/// Tells what errors of a part of one layer cost, which has the same bits everywhere: where no model is at hand that
/// knows. An empty function plans as if all errors cost the same.
using MeasureDamage = std::function<CodedDamage(const CodedPart&)>;

/// Measures a trial that is fitted to the layer. context: how far apart queries and keys are, at most. Throws
/// NumericalError if it is not a finite number.
[[nodiscard]] ErrorDamage damage_of(const LayerStatistics& layer, Windows windows, std::int64_t context,
                                    const MeasureDamage& measure, Backend& backend);
/// Returns that of data: over which its texts were spread (`recipe`, Statistics::recipe), or their mean length.
[[nodiscard]] std::int64_t context_of(const Json& recipe, const CalibrationData& data);
/// Spends the bits on layers with sums of fisher (with values), qqt and vtv, and rows. Throws UsageError for bits that
/// cannot be spent, DataError for a head that gets none, NumericalError for rows that do not vary.
[[nodiscard]] CodedPart fit_coded(const Statistics& statistics, double bits, CodedScope scope, Backend& backend);

/// What the statistics lack for a recipe, "no sums of ktk in layer 3"; empty: nothing.
[[nodiscard]] std::string lacking(const Statistics& statistics, const Recipe& recipe);

/// options: those of all rotations, and the name of the recipe. Throws DataError if no sequence was longer than the
/// windows where fisher is needed, NumericalError if bfloat16 would spoil a stretch.
[[nodiscard]] RotationPart fit_rotations(const Statistics& statistics, const Recipe& recipe, const FitOptions& options,
                                         Backend& backend, Status& status);

/// The layer in which the mean key has the largest share of the energy of keys, |mean|^2 / mean |k|^2: what rotations
/// without means have to quantise beside what keys tell apart.
/// Its id and that share, of the rows that are kept; nothing if there are none.
[[nodiscard]] std::optional<std::pair<int, double>> largest_mean_key(const Statistics& statistics);

/// Each file is whole or absent, and has checksums (tensor/safetensors.hpp); all of them are of one piece of work,
/// which the folder names.
class PartialFolder {
 public:
  /// Member of `of` with a fingerprint for each layer, which only layers that are there already must share: another may
  /// have been mended since.
  static constexpr const char* kDataOfLayers = "data_of_layers";

  /// `of`: all that decides what is taken. Of a folder that is there already the layers are used, which must be of this
  /// work; those that are damaged are removed, and `status` hears of it. Throws DataError if they are of other work, or
  /// if the folder holds something else; UsageError if another process uses the folder, or a file has its name.
  PartialFolder(std::filesystem::path folder, const Json& of, Status& status);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return folder_; }
  [[nodiscard]] std::filesystem::path file_of(int layer_id) const;
  [[nodiscard]] bool has(int layer_id) const;
  /// Once the whole is written: takes away what such a folder holds, and the folder if nothing else is in it.
  void remove() const;

 private:
  /// Throws DataError if what is there is of other work than `of`.
  void require(const Json& found, const Json& of) const;
  void remove_damaged(Status& status) const;

  std::filesystem::path folder_;
  AtomicFolder lock_;  // never committed: it keeps others out for as long as the folder is used
};

/// What errors cost, by layer; empty where nobody knows.
using ErrorCosts = std::map<int, ErrorCost>;

/// Returns the cost in each of `layers`, which have caches. Layers that read another's cache add to that one's, as if
/// what they read of a row had nothing to do with each other. Of layers that `before_rope` has, it is the cost of
/// errors of keys before RoPE. The bytes do not depend on the number of threads.
[[nodiscard]] ErrorCosts error_costs(ModelRunner& runner, const HistoryQuestion& question, std::span<const int> layers,
                                     const std::map<int, Rotary>& before_rope, Backend& backend, Status& status);

/// Returns some of the sequences that are at least half as long as the longest, from all over the data and cut short,
/// since neighbours are often of one kind. gpu: whether there is time for more. Throws DataError if the windows hold
/// nearly all of them.
[[nodiscard]] std::vector<TokenSequence> cost_texts(std::vector<TokenSequence> sequences, bool gpu, Windows windows);

/// Returns the cost on these texts, spread over the positions of a context; `kept`: where they are kept, or were, by a
/// file that PartialFolder checks and takes away as it does layers; or null.
[[nodiscard]] ErrorCosts costs_on(const std::vector<TokenSequence>& texts, int context,
                                  const std::map<int, Rotary>& before_rope, Windows windows, ModelRunner& runner,
                                  std::span<const int> layers, const PartialFolder* kept, Backend& backend,
                                  Status& status);

/// Returns the layers whose softmax has sinks, or whose scores are capped.
[[nodiscard]] std::set<int> layers_that_feel_shifts(const ModelRunner& runner);

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
