// SPDX-License-Identifier: MIT
#include <algorithm>
#include <iterator>
#include <tuple>

#include "base/threads.hpp"
#include "dump/source.hpp"
#include "moments/sums.hpp"
#include "verify/structure/objective.hpp"
#include "verify/structure/subject.hpp"

namespace oscar::verify {
namespace {

/// Null if there are none.
const MomentSums* sums_of(const LayerStatistics& layer, const std::string& objective) {
  const std::optional<Moment> moment = find_moment(objective);
  if (moment == Moment::kSst) return layer.sst ? &*layer.sst : nullptr;
  const auto found = moment ? layer.first.sums.find(*moment) : layer.first.sums.end();
  return found == layer.first.sums.end() ? nullptr : &found->second;
}

/// Second moments and means (Hkv, dim) of rows (n, dim) of each KV head.
std::pair<MatrixStack, std::vector<double>> moments_of(const std::vector<std::vector<float>>& heads, int dim) {
  const auto d = static_cast<std::size_t>(dim);
  MatrixStack squares(static_cast<int>(heads.size()), dim);
  std::vector<double> means(heads.size() * d);
  parallel_for(heads.size(), [&](std::size_t h) {
    const std::span<double> own = squares[static_cast<int>(h)];
    const double share = static_cast<double>(d) / static_cast<double>(heads[h].size());
    for (auto rows = std::span(heads[h]); !rows.empty(); rows = rows.subspan(d)) {
      for (std::size_t i = 0; i < d; ++i) {
        const double x = share * rows[i];
        means[h * d + i] += x;
        for (std::size_t j = 0; j < d; ++j) own[i * d + j] += x * rows[j];
      }
    }
  });
  return {std::move(squares), std::move(means)};
}

/// What keys before RoPE have besides their mean turns in fast pairs, so that both of their channels vary alike.
void even_fast_pairs(const Rotary& rotary, std::span<const double> means, MatrixStack& squares) {
  const auto dim = static_cast<std::size_t>(squares.dim);
  for (int head = 0; head < squares.count; ++head) {
    const std::span<double> own = squares[head];
    const std::span<const double> mean = means.subspan(static_cast<std::size_t>(head) * dim, dim);
    for (std::size_t p = 0; p < dim; p += 2) {
      if (!rotary.is_fast(p / 2)) continue;
      const auto i = static_cast<std::size_t>(rotary.pairs[p]), j = static_cast<std::size_t>(rotary.pairs[p + 1]);
      const double difference = own[i * dim + i] - mean[i] * mean[i] - own[j * dim + j] + mean[j] * mean[j];
      own[i * dim + i] -= difference / 2, own[j * dim + j] += difference / 2;
      own[i * dim + j] = own[j * dim + i] = mean[i] * mean[j];
    }
  }
}

/// Null if nobody took it yet.
const MatrixStack* find(const DataMoments& found, int layer_id, Moment moment) {
  for (const DataCovariance& each : found.covariances) {
    if (each.layer_id == layer_id && each.moment == moment) return &each.covariance;
  }
  return nullptr;
}

}  // namespace

void DataMoments::add(DataMoments more) {
  std::ranges::move(more.covariances, std::back_inserter(covariances));
  std::ranges::move(more.coded, std::back_inserter(coded));
}

void take_covariance(int layer_id, const std::string& objective, LayerStream& layer, bool same_tokens,
                     std::int64_t tokens, Backend& backend, DataMoments& found) {
  const Moment moment = find_moment(objective_name(objective)).value_or(Moment::kKeys);
  if (find(found, layer_id, moment) != nullptr) return;
  MatrixStack covariance;
  switch (moment) {
    case Moment::kKtk:
    case Moment::kQqt:
    case Moment::kVtv:
      covariance = take(layer, moment, backend).mean();
      break;
    case Moment::kSst: {
      const MatrixStack* queries = find(found, layer_id, Moment::kQqt);
      covariance =
          take_sst(layer, queries != nullptr ? *queries : take(layer, Moment::kQqt, backend).mean(), backend).mean();
      break;
    }
    default:
      return;
  }
  found.covariances.push_back({layer_id, moment, std::move(covariance), same_tokens, tokens});
}

CodedMoments coded_moments_of(int layer_id, LayerStream& layer, const CodedPart& part, bool same_tokens,
                              Backend& backend) {
  const auto own = std::ranges::find(part.layers, layer_id, &CodedLayer::layer_id);
  // A fit to a model spreads its texts over positions, so that its rows are not those of the tokens alone.
  const bool known = own != part.layers.end(), before_rope = known && own->key.rotary;
  const bool comparable = known && same_tokens && !part.recipe.contains("context");
  SumsWanted wanted{
      .moments = {Moment::kKeys, Moment::kKtk, Moment::kVtv}, .windows = part.windows, .value_reads = true};
  AdditiveMoments sums;
  if (before_rope) {
    KeysBeforeRope turned_back(layer, *own->key.rotary);
    sums = take(turned_back, wanted, backend);
    wanted.moments.clear();
  }
  if (comparable) wanted.moments.insert(Moment::kFisher);
  if (AdditiveMoments more = take(layer, wanted, backend); before_rope) {
    sums.fisher = std::move(more.fisher);
  } else {
    sums = std::move(more);
  }
  const MomentSums& values = sums.sums.at(Moment::kVtv);
  CodedMoments found{.layer_id = layer_id};
  found.key = sums.sums.at(Moment::kKtk).mean(), found.value = values.mean();
  found.key_mean = sums.keys->mean();
  if (before_rope) even_fast_pairs(*own->key.rotary, found.key_mean, found.key);
  found.tokens = static_cast<std::int64_t>(values.total.front());
  if (!comparable) return found;
  const FisherSums& fisher = *sums.fisher;
  if (!std::ranges::all_of(fisher.weight, [](double weight) { return weight > 0; })) return found;
  const FisherMoments read = mean(fisher, part.windows);
  if (!before_rope) found.key_covariance = read.key;
  if (!before_rope && !own->key.transform.mean.empty()) {
    found.key_covariance = centred(read.key, read.key_mean, read.key_mean);
  }
  found.value_covariance = fisher.value;
  for (int head = 0; head < fisher.value.count; ++head) {
    const double scale = found.value.trace(head) / fisher.value.trace(head);
    for (double& entry : found.value_covariance[head]) entry *= scale;
  }
  return found;
}

std::vector<CodedMoments> coded_moments_of(const Statistics& statistics, const CodedPart& part,
                                           std::vector<Check>& checks) {
  require_all_heads(statistics.heads);
  std::vector<CodedMoments> found;
  for (const LayerStatistics& layer : statistics.layers) {
    const auto own = std::ranges::find(part.layers, layer.layer_id, &CodedLayer::layer_id);
    const bool before_rope = own != part.layers.end() && own->key.rotary;
    const auto& keys = before_rope ? layer.keys_before_rope : layer.key_rows;
    if (!keys.empty() && !layer.value_rows.empty()) {
      CodedMoments& moments = found.emplace_back(CodedMoments{.layer_id = layer.layer_id});
      std::tie(moments.key, moments.key_mean) = moments_of(keys, layer.key_dim);
      if (before_rope) even_fast_pairs(*own->key.rotary, moments.key_mean, moments.key);
      moments.value = moments_of(layer.value_rows, layer.value_dim).first;
      moments.tokens = std::ssize(keys.front()) / layer.key_dim;
      continue;
    }
    checks.push_back(
        {.name = "scales_on_data",
         .layer = layer.layer_id,
         .message = "the statistics keep no rows of keys as the part stores them: give --dump or --model"});
  }
  return found;
}

Json description_of(const Statistics& statistics) {
  const CalibrationData data = calibration_of(statistics.data);
  return {{"data_sha256", data.data_sha256},
          {"tokens", data.tokens},
          {"sequences", data.sequences},
          {"layers", statistics.layers.size()}};
}

void take_covariances(const RotationSide& side, const std::string& fitted_sha256, const Statistics& statistics,
                      DataMoments& found, std::vector<Check>& checks) {
  require_all_heads(statistics.heads);
  const std::string name = objective_name(side.objective);
  if (side.target.empty() || name == "hadamard" || name == "uresidual") return;
  if (side.objective.starts_with("stretch_")) return;  // it diagonalises what the set carries
  const bool same_data = !fitted_sha256.empty() && fitted_sha256 == calibration_of(statistics.data).data_sha256;
  for (const LayerStatistics& layer : statistics.layers) {
    const MomentSums* sums = sums_of(layer, name);
    if (sums == nullptr) {
      checks.push_back({.name = "decomposition_on_data",
                        .layer = layer.layer_id,
                        .target = side.target,
                        .message = "the statistics have no sums of " + name});
      continue;
    }
    std::int64_t tokens = 0;
    for (const std::size_t place : layer.first_data) tokens += statistics.data[place].tokens;
    if (find(found, layer.layer_id, *find_moment(name)) != nullptr) continue;
    const bool same = same_data && layer.first_data.size() == statistics.data.size();
    found.covariances.push_back({layer.layer_id, *find_moment(name), sums->mean(), same, tokens});
  }
}

}  // namespace oscar::verify
