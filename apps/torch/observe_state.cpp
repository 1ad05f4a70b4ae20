// SPDX-License-Identifier: MIT
#include "observe_state.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "kernels/backend.hpp"
#include "moments/statistics.hpp"

namespace oscar::operators {
namespace {

/// All states of the process by their numbers, which are given once. Never destroyed: tensors can outlive the end of
/// main(), and GPUs are gone by then.
struct States {
  std::mutex mutex;
  std::map<std::int64_t, std::shared_ptr<State>> known;
  std::int64_t last = 0;
};

States& states() {
  static auto* const all = new States;
  return *all;
}

/// What torch calls when the tensor goes.
void forget(void* number) {
  std::shared_ptr<State> state;  // goes after the lock does
  {
    const std::lock_guard lock(states().mutex);
    const auto found = states().known.find(*static_cast<std::int64_t*>(number));
    if (found != states().known.end()) state = std::move(found->second), states().known.erase(found);
  }
  delete static_cast<std::int64_t*>(number);
}

Tensor on_host(const Tensor& x) {
  const Tensor host = x.is_cpu() ? x : torch::stable::to(x, Device(DeviceType::CPU));
  return torch::stable::contiguous(host);
}

/// Tokens [first, second).
using Run = std::pair<std::int64_t, std::int64_t>;

Run run_of(const Tensor& cu_seqlens, std::int64_t tokens) {
  const Tensor host = on_host(cu_seqlens);
  const bool is_long = host.scalar_type() == ScalarType::Long;
  const auto at = [&](std::int64_t i) {
    const std::int64_t boundary =
        is_long ? host.const_data_ptr<std::int64_t>()[i] : host.const_data_ptr<std::int32_t>()[i];
    return std::clamp<std::int64_t>(boundary, 0, tokens);
  };
  const std::int64_t begin = at(0);
  return {begin, std::max(begin, at(host.size(0) - 1))};
}

/// The tokens that count, of batch * tokens.
std::vector<Run> runs_of(const Rows& rows) {
  const std::int64_t tokens = rows.batch() * rows.k.size(-3);
  if (rows.cu_seqlens) return {run_of(*rows.cu_seqlens, tokens)};
  if (!rows.mask) return {{0, tokens}};
  const Tensor mask = on_host(*rows.mask);
  const bool* const counts = mask.const_data_ptr<bool>();
  std::vector<Run> runs;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (!counts[t]) continue;
    if (runs.empty() || runs.back().second < t) runs.emplace_back(t, t);
    runs.back().second = t + 1;
  }
  return runs;
}

/// The tokens of the runs one after the other, in `space` unless they are one run.
HeadsView counted(const Tensor& host, DType dtype, const std::vector<Run>& runs, std::vector<std::byte>& space) {
  HeadsView all{static_cast<const std::byte*>(host.const_data_ptr()), dtype, 0, static_cast<int>(host.size(-2)),
                static_cast<int>(host.size(-1))};
  if (runs.size() == 1) return all.tokens(runs[0].first, runs[0].second);
  for (const auto& [begin, end] : runs) {
    space.insert(space.end(), all.data + begin * all.bytes_per_token(), all.data + end * all.bytes_per_token());
    all.num_tokens += end - begin;
  }
  all.data = space.data();
  return all;
}

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
  if (layer.shape.sample_size > 0) out.sst = score_weighted(layer, queries);
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

Tensor tensor_of(std::unique_ptr<State> state) {
  auto number = std::make_unique<std::int64_t>();
  {
    const std::lock_guard lock(states().mutex);
    *number = ++states().last;
    states().known.emplace(*number, std::move(state));
  }
  return torch::stable::from_blob(number.release(), {1}, {1}, Device(DeviceType::CPU), ScalarType::Long, &forget);
}

std::shared_ptr<State> state_of(const Tensor& tensor) {
  const bool is_number = tensor.is_cpu() && tensor.scalar_type() == ScalarType::Long && tensor.numel() == 1;
  if (!is_number)
    fail("state is ", tensor.scalar_type(), " ", shape_of(tensor), " on ", text_of(tensor.device()),
         ", not what torch.ops.oscar.new_state returned");
  const std::int64_t number = *tensor.const_data_ptr<std::int64_t>();
  const std::lock_guard lock(states().mutex);
  const auto found = states().known.find(number);
  if (found == states().known.end())
    fail("there is no state ", number, "; keep what torch.ops.oscar.new_state returned");
  return found->second;
}

Layer::Layer(const LayerShape& shape_, const Device& device_, std::unique_ptr<GpuLayer> gpu_)
    : shape(shape_), device(device_), gpu(std::move(gpu_)) {
  if (!gpu) host.emplace(shape);
}

void Layer::write(LayerSums sums) {
  if (gpu) return gpu->write(sums);
  host = std::move(sums);
}

void Layer::clear() {
  if (gpu) return gpu->clear();
  host.emplace(shape);
}

void merge(State& state, const State& other) {
  if (state.shard.first != other.shard.first || state.shard.total != other.shard.total) {
    throw DataError("states of different KV heads are not of different data", "merge",
                    "save each, and give both files to oscar fit --stats");
  }
  std::mt19937_64 random(static_cast<std::uint64_t>(state.seed) ^ 0x9e3779b97f4a7c15U);
  for (const auto& [id, layer] : other.layers) {
    const auto found = state.layers.find(id);
    if (found == state.layers.end()) {
      Layer copy(layer.shape, layer.device, layer.gpu ? layer.gpu->another() : nullptr);
      copy.write(layer.read());
      state.layers.emplace(id, std::move(copy));
    } else {
      LayerSums sums = found->second.read();
      merge(sums, layer.read(), id, random);
      found->second.write(std::move(sums));
    }
  }
}

void Layer::add(const Rows& rows, std::int64_t seed) {
  if (gpu) return gpu->add(rows, seed);
  if (is_capturing(rows.k)) {
    fail("observe: a CUDA graph cannot hold rows that no kernel takes, ", rows.k.scalar_type(), " ", shape_of(rows.k),
         "; give bfloat16 or float16, of 16 to 256 channels in steps of 16");
  }
  set_num_threads(static_cast<int>(torch::stable::get_num_threads()));
  const std::vector<Run> runs = runs_of(rows);
  const std::array hosts{on_host(rows.q), on_host(rows.k), on_host(rows.v)};
  std::array<std::vector<std::byte>, 3> spaces;
  const auto view = [&](std::size_t i) { return counted(hosts[i], shape.dtype, runs, spaces[i]); };
  add_rows(*host, {view(0), view(1), view(2), rows.query_scale * rows.query_scale, rows.sequences()}, seed);
}

void save(const State& state, const std::string& path, const std::string& model, const std::string& data,
          const std::vector<std::int64_t>& expected) {
  if (state.layers.empty()) throw DataError("no layer was observed", "save", "run text through the model before save");
  Statistics out;
  out.model = model_identity_from_json(parse_json(model, "save: model"));
  const LayerSums first = state.layers.begin()->second.read();
  for (const auto& [id, layer] : state.layers) out.layers.push_back(statistics_of(id, layer.read()));
  out.data = {data_of(data, state, first, out)};
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
