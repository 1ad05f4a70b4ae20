// SPDX-License-Identifier: MIT
#include "fit/coded_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "fit/coded_data.hpp"
#include "method/coded_side.hpp"
#include "moments/take.hpp"

namespace oscar {
namespace {

/// Bits of codes with which damage is measured, the same for every head.
constexpr double kTrialBits = 2;
/// Errors below this are noise of arithmetic.
constexpr double kLeastDamage = 1e-5;

MatrixStack grams_of(std::span<const float> rows, std::int64_t tokens, int heads, int dim, Backend& backend) {
  MatrixStack grams(heads, dim);
  backend.accumulate_grams(std::vector{heads_view(rows, tokens, heads, dim)}, grams);
  return grams;
}

void add_to(MatrixStack& sum, const MatrixStack& part, double factor) {
  if (sum.data.empty()) sum = MatrixStack(part.count, part.dim);
  for (std::size_t i = 0; i < part.data.size(); ++i) sum.data[i] += factor * part.data[i];
}

/// Adds a token's rows to those of each head.
void add_rows(const HeadsView& x, std::int64_t token, std::vector<std::vector<float>>& heads) {
  const auto dim = static_cast<std::size_t>(x.head_dim);
  heads.resize(static_cast<std::size_t>(x.num_heads));
  for (int head = 0; head < x.num_heads; ++head) {
    std::vector<float>& own = heads[static_cast<std::size_t>(head)];
    own.resize(own.size() + dim);
    x.row(token, head, std::span(own).last(dim));
  }
}

/// Every n-th token, so that about `wanted` are taken.
void take_rows(LayerStream& stream, std::int64_t tokens, std::int64_t wanted, CodedLayerData& data) {
  const std::int64_t stride = std::max<std::int64_t>(1, tokens / std::max<std::int64_t>(wanted, 1));
  stream.rewind();
  QkvChunk chunk;
  for (std::int64_t first = 0; stream.next(chunk); first += chunk.view.k.num_tokens) {
    for (std::int64_t t = 0; t < chunk.view.k.num_tokens; ++t) {
      if ((first + t) % stride != stride / 2) continue;
      add_rows(chunk.view.k, t, data.key_rows);
      add_rows(chunk.view.v, t, data.value_rows);
    }
  }
}

void require_blocks(const MatrixStack& moments, const char* side, int layer_id) {
  if (moments.dim % kLevelBlock == 0) return;
  throw DataError(fmt::format("heads of {}s have {} channels, and the coded cache takes multiples of {}", side,
                              moments.dim, kLevelBlock),
                  fmt::format("layer {}", layer_id), "fit another recipe, or leave the layer out with --layers");
}

MatrixStack identity(int count, int dim) {
  MatrixStack stack(count, dim);
  for (int h = 0; h < count; ++h) {
    for (int i = 0; i < dim; ++i) stack[h][static_cast<std::size_t>(i) * static_cast<std::size_t>(dim + 1)] = 1;
  }
  return stack;
}

/// The bases that the data ask for: of keys and of values. Without a cost a key's error counts as the softmax feels it,
/// and a value's by its square.
struct CodedBases {
  CodedBasis key, value;
};

CodedBases bases_of(const CodedLayerData& data, Backend& backend) {
  const AdditiveMoments& sums = data.sums.first;
  const FisherSums& fisher = sums.fisher.value();
  const MomentSums &queries = sums.sums.at(Moment::kQqt), &values = sums.sums.at(Moment::kVtv);
  MatrixStack key_cost = data.cost ? data.cost->key : fisher.query;
  if (!data.cost) {
    for (double& entry : key_cost.data) entry *= 1 / queries.total.front();
  }
  const MatrixStack value_cost = data.cost ? data.cost->value : identity(fisher.value.count, fisher.value.dim);
  const double plain_part = data.cost ? kPlainCostPart : kPlainQueryPart;
  return {coded_key_basis(key_cost, queries.mean(), plain_part, fisher, data.centred, backend),
          coded_value_basis(value_cost, plain_part, fisher.value, values.mean(), backend)};
}

/// What levels of one side are planned by.
CodedSpectrum spectrum_of(const CodedBasis& basis, int layer_id, const std::string& side, double weight) {
  const MatrixStack& write = basis.transform.rotation;
  return {layer_id, side, write.count, write.dim, basis.lambda, weight};
}

/// The same bits for the keys, and for the values, of every head.
CodedLevels trial_levels(const CodedBasis& basis, int layer_id, const char* side) {
  const CodedSpectrum spectrum = spectrum_of(basis, layer_id, side, 1);
  return plan_levels({&spectrum, 1}, kTrialBits + 16.0 / spectrum.dim, CodedScope::kHead).front();
}

/// The error that codes of `levels` are expected to make in a basis: lambda as a set has it, in the order of levels.
double expected_error_of(const std::vector<double>& lambda, const std::vector<int>& levels, std::size_t dim) {
  double error = 0;
  for (std::size_t first = 0; first < lambda.size(); first += dim) {
    error += expected_error(std::span(lambda).subspan(first, dim), std::span(levels).subspan(first, dim));
  }
  return error;
}

double expected_error_of(const CodedSide& side) {
  std::vector<int> levels;
  for (const CodedFormat& format : side.formats) {
    levels.insert(levels.end(), format.levels.begin(), format.levels.end());
  }
  return expected_error_of(side.lambda, levels, side.lambda.size() / side.formats.size());
}

/// What an error of 1 costs if that of the trial costs `damage`.
double weight_by(double damage, const CodedBasis& basis, int layer_id, const char* side) {
  const CodedLevels trial = trial_levels(basis, layer_id, side);
  std::vector<double> lambda;
  const auto dim = static_cast<std::size_t>(basis.transform.rotation.dim);
  for (std::size_t i = 0; i < trial.order.size(); ++i) {
    const double exact = basis.lambda[i / dim * dim + static_cast<std::size_t>(trial.order[i])];
    lambda.push_back(static_cast<double>(static_cast<float>(exact)));
  }
  return std::max(damage, kLeastDamage) / expected_error_of(lambda, trial.levels, dim);
}

/// Ratios weigh layers and sides against each other. Where costs are known, variances have them.
CodedDamage weights_of(const CodedLayerData& layer, const CodedBases& bases) {
  if (!layer.damage) return {1, 1};
  const int id = layer.sums.layer_id;
  return {weight_by(layer.damage->key, bases.key, id, "key"), weight_by(layer.damage->value, bases.value, id, "value")};
}

CodedLayer coded_layer(const CodedLayerData& data, const CodedBases& bases, const CodedLevels& key,
                       const CodedLevels& value) {
  return {data.sums.layer_id, coded_side(bases.key, data.key_rows, key),
          coded_side(bases.value, data.value_rows, value)};
}

CodedDamage damage_of(const CodedLayerData& data, Windows windows, const MeasureDamage& measure, Backend& backend) {
  const CodedBases bases = bases_of(data, backend);
  const int id = data.sums.layer_id;
  CodedPart trial;
  trial.windows = windows;
  trial.layers = {coded_layer(data, bases, trial_levels(bases.key, id, "key"), trial_levels(bases.value, id, "value"))};
  const CodedDamage damage = measure(trial);
  if (std::isfinite(damage.key) && std::isfinite(damage.value)) return damage;
  throw NumericalError("what errors cost is not a finite number", "layer " + std::to_string(id),
                       "look at the data of the layer");
}

/// Reads a layer for its sums, its rows and, where nobody knows what its errors cost, its damage. Throws DataError if
/// no sequence is longer than the windows or head sizes are no multiples of 8.
CodedLayerData take_coded_layer(int layer_id, LayerStream& stream, const CodedOptions& options, const ErrorCosts& costs,
                                const MeasureDamage& measure, Backend& backend) {
  CodedLayerData data;
  AdditiveMoments& sums = data.sums.first;
  SumsWanted wanted{.moments = options.more, .windows = options.windows, .value_reads = true};
  wanted.moments.insert({Moment::kFisher, Moment::kQqt, Moment::kVtv});
  sums = take(stream, wanted, backend);
  const FisherSums& fisher = *sums.fisher;
  require_blocks(fisher.key, "key", layer_id);
  require_blocks(fisher.value, "value", layer_id);
  (void)mean(fisher, options.windows);  // says so if there is no history
  data.sums.layer_id = layer_id, data.sums.key_dim = fisher.key.dim, data.sums.value_dim = fisher.value.dim;
  data.sums.first_data = {0};
  if (options.more.contains(Moment::kSst)) {
    data.sums.sst = take_sst(stream, sums.sums.at(Moment::kQqt).mean(), backend);
    data.sums.sst_data = {0};
  }
  if (const auto cost = costs.find(layer_id); cost != costs.end()) data.cost = cost->second;
  data.centred = !options.uncentred.contains(layer_id);
  take_rows(stream, tokens_of(data), options.sample_rows, data);
  if (!data.cost && measure) data.damage = damage_of(data, options.windows, measure, backend);
  return data;
}

}  // namespace

std::map<int, ErrorCost> error_costs(ModelRunner& runner, const HistoryQuestion& question, std::span<const int> layers,
                                     Backend& backend, Status& status) {
  std::map<int, std::vector<std::vector<ErrorCost>>>
      parts;  // of each cache: by sequence, of the layers that read it and of the draws
  for (const int layer : layers) parts[layer].resize(question.sequences.size());
  const auto take = [&](int layer, std::size_t s, std::span<const float> key, std::span<const float> value) {
    const auto cache = parts.find(runner.config().cache_of(layer));
    if (cache == parts.end()) return;
    const MixerSpec& mixer = runner.config().block(layer).mixer;
    const std::int64_t tokens = std::ssize(question.sequences[s]);
    cache->second[s].push_back({grams_of(key, tokens, mixer.num_kv_heads, mixer.head_dim, backend),
                                grams_of(value, tokens, mixer.num_kv_heads, mixer.value_dim, backend)});
  };
  runner.history_gradients(question, take, status);
  std::size_t tokens = 0;
  for (const TokenSequence& sequence : question.sequences) tokens += sequence.size();
  const double factor = 0.5 / static_cast<double>(tokens) / question.draws;
  std::map<int, ErrorCost> costs;
  for (const auto& [layer, sequences] : parts) {
    for (const std::vector<ErrorCost>& readers : sequences) {
      for (const ErrorCost& part : readers) {
        add_to(costs[layer].key, part.key, factor);
        add_to(costs[layer].value, part.value, factor);
      }
    }
  }
  return costs;
}

std::int64_t tokens_of(const CodedLayerData& data) {
  return static_cast<std::int64_t>(data.sums.first.sums.at(Moment::kVtv).total.front());
}

CodedData take_coded_data(QkvSource& source, const CodedOptions& options, const ErrorCosts& costs,
                          const MeasureDamage& measure, const PartialFolder* folder, Backend& backend, Status& status) {
  CodedData data{source.model(), {source.calibration()}, options.windows, {}, options.recipe};
  // A trial set is measured on the layer's rows.
  const bool tried = std::ranges::any_of(source.layer_ids(), [&](int id) { return !costs.contains(id); });
  data.layers = take_layers<CodedLayerData>(
      source, kept_coded(folder, data), "layers taken", tried ? 1 : backend.work_shape().concurrent_layers,
      [&](int id, LayerStream& rows) { return take_coded_layer(id, rows, options, costs, measure, backend); }, status);
  return data;
}

CodedPart fit_coded(const CodedData& data, double bits, CodedScope scope, Backend& backend) {
  CodedPart set;
  set.model = data.model, set.calibration = calibration_of(data.data), set.windows = data.windows;
  set.bits = bits, set.scope = name_of(scope), set.recipe = data.recipe;
  std::vector<CodedBases> bases;
  std::vector<CodedDamage> weights;
  std::vector<CodedSpectrum> spectra;  // keys and values of each layer, one after the other
  for (const CodedLayerData& layer : data.layers) {
    throw_if_interrupted();
    bases.push_back(bases_of(layer, backend));
    weights.push_back(weights_of(layer, bases.back()));
    spectra.push_back(spectrum_of(bases.back().key, layer.sums.layer_id, "key", weights.back().key));
    spectra.push_back(spectrum_of(bases.back().value, layer.sums.layer_id, "value", weights.back().value));
  }
  const std::vector<CodedLevels> plan = plan_levels(spectra, bits, scope);
  set.layers.resize(data.layers.size());
  parallel_for(data.layers.size(), [&](std::size_t i) {
    throw_if_interrupted();
    CodedLayer& layer = set.layers[i] = coded_layer(data.layers[i], bases[i], plan[2 * i], plan[2 * i + 1]);
    layer.key.damage = weights[i].key * expected_error_of(layer.key);
    layer.value.damage = weights[i].value * expected_error_of(layer.value);
  });
  return set;
}

}  // namespace oscar
