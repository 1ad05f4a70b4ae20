// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "base/errors.hpp"
#include "observe_state.hpp"
#include "stats/statistics.hpp"

namespace oscar::tap {
namespace {

constexpr int64_t kBlockRows = 2048;  // bounds the memory for fp64 copies of a sample

std::string name_of(int64_t layer) { return "layer " + std::to_string(layer); }

int64_t tokens_of(const LayerState& layer) { return layer.counts.select(0, 0).item<int64_t>(); }

/// In host memory, fp64 and dense.
std::vector<double> doubles_of(const Tensor& x) {
  const Tensor host = x.to(at::kCPU, at::kDouble).contiguous();
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}

/// symmetric: the upper triangles are repeated below.
Tensor symmetric(const Tensor& sums) { return at::triu(sums) + at::triu(sums, 1).transpose(1, 2); }

MomentSums moments_of(const Tensor& sums, double total) {
  MomentSums out{MatrixStack(static_cast<int>(sums.size(0)), static_cast<int>(sums.size(1))), {}};
  out.sums.data = doubles_of(symmetric(sums));
  out.total.assign(static_cast<std::size_t>(sums.size(0)), total);
  return out;
}

/// Sum of w v^T v with w = k C k^T. The sum of w is known exactly, and so is what a constant w would give; the sample
/// says how w varies with v, which leaves a tenth of the error of a sample alone, and none if it holds every token.
MomentSums score_weighted(const LayerState& layer, int64_t tokens, double queries) {
  const Tensor form = symmetric(layer.qqt) / queries;
  const Tensor total = (form * symmetric(layer.ktk)).sum({1, 2}), mean = (total / tokens).unsqueeze(-1);
  const int64_t sampled = std::min(tokens, layer.sample());
  Tensor varying = at::zeros_like(layer.vtv);
  for (int64_t begin = 0; begin < sampled; begin += kBlockRows) {
    const int64_t n = std::min(kBlockRows, sampled - begin);
    const Tensor k = layer.k_rows.narrow(0, begin, n).to(at::kDouble).transpose(0, 1);
    const Tensor v = layer.v_rows.narrow(0, begin, n).to(at::kDouble).transpose(0, 1);
    const Tensor w = (at::bmm(k, form) * k).sum(-1) - mean;
    varying.baddbmm_((v * w.unsqueeze(-1)).transpose(1, 2), v);
  }
  const double repeated = static_cast<double>(tokens) / static_cast<double>(sampled);
  MomentSums out = moments_of(symmetric(layer.vtv) * mean.unsqueeze(-1) + varying * repeated, 0);
  out.total = doubles_of(total);
  return out;
}

LayerStatistics statistics_of(int64_t id, const LayerState& layer) {
  const int64_t tokens = tokens_of(layer);
  if (tokens == 0) throw DataError("no tokens were observed", name_of(id), "run text through the model before save");
  const Tensor sums = layer.qqt.sum() + layer.ktk.sum() + layer.vtv.sum();
  if (!std::isfinite(sums.item<double>())) {
    throw DataError("q, k or v had NaN or Inf", name_of(id), "look for the sequence, and observe the others again");
  }
  LayerStatistics out{.layer_id = static_cast<int>(id),
                      .key_dim = static_cast<int>(layer.ktk.size(1)),
                      .value_dim = static_cast<int>(layer.vtv.size(1)),
                      .first_data = {0}};
  const double count = static_cast<double>(tokens);
  const double queries = count * static_cast<double>(layer.num_q_heads / layer.num_kv_heads());
  out.first.sums["qqt"] = moments_of(layer.qqt, queries);
  out.first.sums["ktk"] = moments_of(layer.ktk, count);
  out.first.sums["vtv"] = moments_of(layer.vtv, count);
  out.first.keys = KeySums{doubles_of(layer.key_sums), count};
  if (layer.sample() > 0) out.sst = score_weighted(layer, tokens, queries), out.sst_data = {0};
  return out;
}

/// What is given, or how many tokens there were and, where one process sees all heads, a hash of the sums in place of
/// one of the text.
CalibrationData data_of(const std::string& given, const State& state, const Statistics& statistics) {
  CalibrationData data = calibration_data_from_json(parse_json(given, "save: data"));
  for (const auto& [id, layer] : state.layers) {
    if (data.tokens == 0) data.tokens = tokens_of(layer);
    if (data.sequences == 0) data.sequences = layer.counts.select(0, 1).item<int64_t>();
  }
  if (data.data_sha256.empty() && state.shard.total == 0) data.data_sha256 = query_moments_sha256(statistics);
  return data;
}

/// How many of `n` rows, drawn without replacement of a and b rows, are among the a.
int64_t draw(int64_t n, int64_t a, int64_t b, std::mt19937_64& random) {
  int64_t taken = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto left = static_cast<std::uint64_t>(a - taken + b - (i - taken));
    if (random() % left < static_cast<std::uint64_t>(a - taken)) ++taken;
  }
  return taken;
}

/// `n` different places of [0, of), in random order.
Tensor choose(int64_t n, int64_t of, std::mt19937_64& random, const at::Device& device) {
  std::vector<int64_t> places(static_cast<std::size_t>(of));
  std::iota(places.begin(), places.end(), 0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    std::swap(places[i], places[i + random() % (places.size() - i)]);
  }
  return at::tensor(places).narrow(0, 0, n).to(device);
}

/// A uniform sample of both layers' tokens, of which there are a and b.
void merge_samples(LayerState& to, const LayerState& from, int64_t a, int64_t b, std::mt19937_64& random) {
  const int64_t size = to.sample(), n = std::min(size, a + b);
  const int64_t own = a + b <= size ? a : draw(n, a, b, random);
  const at::Device device = to.k_rows.device(), other = from.k_rows.device();
  const Tensor kept = choose(own, std::min(a, size), random, device);
  const Tensor added = choose(n - own, std::min(b, size), random, other);
  for (auto [rows, more] : {std::pair{&to.k_rows, &from.k_rows}, std::pair{&to.v_rows, &from.v_rows}}) {
    rows->narrow(0, 0, n).copy_(at::cat({rows->index_select(0, kept), more->index_select(0, added).to(device)}));
  }
  to.owners.narrow(0, 0, n).fill_(a + b - 1);  // older than any token to come
}

void merge_layer(int64_t id, LayerState& to, const LayerState& from, std::mt19937_64& random) {
  if (to.num_q_heads != from.num_q_heads || to.ktk.sizes() != from.ktk.sizes() || to.vtv.sizes() != from.vtv.sizes() ||
      to.k_rows.scalar_type() != from.k_rows.scalar_type() || to.sample() != from.sample()) {
    throw DataError("heads, dimensions, types or samples of two states differ", name_of(id),
                    "merge states of one model, made with the same reservoir");
  }
  if (to.sample() > 0) merge_samples(to, from, tokens_of(to), tokens_of(from), random);
  for (Tensor LayerState::*sums :
       {&LayerState::qqt, &LayerState::ktk, &LayerState::vtv, &LayerState::key_sums, &LayerState::counts}) {
    (to.*sums).add_((from.*sums).to((to.*sums).device()));
  }
}

/// On the same device, sharing nothing.
LayerState copy_of(const LayerState& layer) {
  LayerState out = layer;
  for (Tensor LayerState::*each :
       {&LayerState::qqt, &LayerState::ktk, &LayerState::vtv, &LayerState::key_sums, &LayerState::counts,
        &LayerState::k_rows, &LayerState::v_rows, &LayerState::owners}) {
    out.*each = (layer.*each).clone();
  }
  out.workspaces.clear();
  return out;
}

}  // namespace

void merge(State& state, const State& other) {
  if (state.shard.first != other.shard.first || state.shard.total != other.shard.total) {
    throw DataError("states of different KV heads are not of different data", "merge",
                    "save each, and give both files to oscar fit --stats");
  }
  const c10::InferenceMode off(false);
  std::mt19937_64 random(static_cast<std::uint64_t>(state.seed) ^ 0x9e3779b97f4a7c15U);
  for (const auto& [id, layer] : other.layers) {
    const auto found = state.layers.find(id);
    if (found == state.layers.end()) {
      state.layers.emplace(id, copy_of(layer));
    } else {
      merge_layer(id, found->second, layer, random);
    }
  }
}

void save(const State& state, const std::string& path, const std::string& model, const std::string& data,
          at::IntArrayRef expected) {
  if (state.layers.empty()) throw DataError("no layer was observed", "save", "run text through the model before save");
  Statistics out;
  out.model = model_identity_from_json(parse_json(model, "save: model"));
  for (const auto& [id, layer] : state.layers) out.layers.push_back(statistics_of(id, layer));
  out.data = {data_of(data, state, out)};
  if (out.layers.front().sst) out.query_moments_sha256 = query_moments_sha256(out);
  out.expected_layers.assign(expected.begin(), expected.end());
  const int64_t heads = state.layers.begin()->second.num_kv_heads();
  if (state.shard.total > 0) {
    out.heads = {static_cast<int>(state.shard.first), static_cast<int>(heads), static_cast<int>(state.shard.total)};
  }
  if (state.reservoir > 0) {
    const LayerState& layer = state.layers.begin()->second;
    out.sample = RowSample{layer.sample(), static_cast<std::uint64_t>(state.seed)};
  }
  write_statistics(path, out);
}

}  // namespace oscar::tap
