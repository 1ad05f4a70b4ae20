// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "kernels/backend.hpp"
#include "moments/statistics.hpp"
#include "observe_state.hpp"

namespace oscar::operators {
namespace {

bool is_finite(const MatrixStack& sums) {
  return std::all_of(sums.data.begin(), sums.data.end(), [](double value) { return std::isfinite(value); });
}

MomentSums with_total(const MatrixStack& sums, double total) {
  return {sums, std::vector<double>(static_cast<std::size_t>(sums.count), total)};
}

/// Sum of w v^T v with w = k C k^T. The sum of w is known exactly, and so is what a constant w would give; the sample
/// says how w varies with v, which leaves a tenth of the error of a sample alone, and none if it holds every token.
MomentSums score_weighted(const LayerSums& layer, double queries) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  MatrixStack forms = layer.qqt, weighted(layer.vtv.count, layer.vtv.dim), plain = weighted;
  for (double& value : forms.data) value /= queries;
  std::vector<double> of_sample(static_cast<std::size_t>(forms.count));
  const HeadsView keys = layer.sampled_keys(), values = layer.sampled_values();
  backend->accumulate_weighted_grams(std::span(&keys, 1), forms, std::span(&values, 1), weighted, of_sample);
  backend->accumulate_grams(std::span(&values, 1), plain);
  const double repeated = static_cast<double>(layer.tokens) / static_cast<double>(layer.sampled());
  MomentSums out = with_total(layer.vtv, 0);
  for (int h = 0; h < forms.count; ++h) {
    double& total = out.total[static_cast<std::size_t>(h)];
    for (std::size_t i = 0; i < forms[h].size(); ++i) total += forms[h][i] * layer.ktk[h][i];
    const double mean = total / static_cast<double>(layer.tokens);
    for (std::size_t i = 0; i < plain[h].size(); ++i) {
      out.sums[h][i] = layer.vtv[h][i] * mean + (weighted[h][i] - mean * plain[h][i]) * repeated;
    }
  }
  return out;
}

LayerStatistics statistics_of(std::int64_t id, const LayerSums& layer) {
  const std::string where = "layer " + std::to_string(id);
  if (layer.tokens == 0) throw DataError("no tokens were observed", where, "run text through the model before save");
  if (!is_finite(layer.qqt) || !is_finite(layer.ktk) || !is_finite(layer.vtv)) {
    throw DataError("q, k or v had NaN or Inf", where, "look for the sequence, and observe the others again");
  }
  LayerStatistics out{.layer_id = static_cast<int>(id),
                      .key_dim = layer.shape.key_dim,
                      .value_dim = layer.shape.value_dim,
                      .first_data = {0}};
  const auto count = static_cast<double>(layer.tokens);
  const double queries = count * (layer.shape.num_q_heads / layer.shape.num_kv_heads);
  out.first.sums[Moment::kQqt] = with_total(layer.qqt, queries);
  out.first.sums[Moment::kKtk] = with_total(layer.ktk, count);
  out.first.sums[Moment::kVtv] = with_total(layer.vtv, count);
  out.first.keys = KeySums{layer.key_sums, count};
  if (layer.shape.sample_size > 0) out.sst = score_weighted(layer, queries), out.sst_data = {0};
  return out;
}

/// What is given, or how many tokens there were and, where one process sees all heads, a hash of the sums in place of
/// one of the text.
CalibrationData data_of(const std::string& given, const State& state, const LayerSums& first,
                        const Statistics& statistics) {
  CalibrationData data = calibration_data_from_json(parse_json(given, "save: data"));
  if (data.tokens == 0) data.tokens = first.tokens;
  if (data.sequences == 0) data.sequences = first.sequences;
  if (data.data_sha256.empty() && state.shard.total == 0) data.data_sha256 = query_moments_sha256(statistics);
  return data;
}

}  // namespace

void save(const State& state, const std::string& path, const std::string& model, const std::string& data,
          const std::vector<std::int64_t>& expected) {
  if (state.layers.empty()) throw DataError("no layer was observed", "save", "run text through the model before save");
  Statistics out;
  out.model = model_identity_from_json(parse_json(model, "save: model"));
  const LayerSums first = state.layers.begin()->second.read();
  for (const auto& [id, layer] : state.layers) out.layers.push_back(statistics_of(id, layer.read()));
  out.data = {data_of(data, state, first, out)};
  if (out.layers.front().sst) out.query_moments_sha256 = query_moments_sha256(out);
  out.expected_layers.assign(expected.begin(), expected.end());
  if (state.shard.total > 0) {
    out.heads = {static_cast<int>(state.shard.first), first.shape.num_kv_heads, static_cast<int>(state.shard.total)};
  }
  if (state.reservoir > 0) {
    out.sample = RowSample{first.shape.sample_size, static_cast<std::uint64_t>(state.seed)};
  }
  write_statistics(path, out);
}

}  // namespace oscar::operators
