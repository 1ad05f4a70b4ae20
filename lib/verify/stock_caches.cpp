// SPDX-License-Identifier: MIT
#include "verify/stock_caches.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "dump/live_source.hpp"
#include "measure/peers/baselines.hpp"
#include "measure/peers/quantizers.hpp"
#include "verify/measure_source.hpp"

namespace oscar {
namespace verify {
namespace {

/// What an engine can leave in bfloat16 at once, and the errors that this takes away.
struct Group {
  std::vector<int> layers;
  bool keys, values;
  double error;
};

/// The largest error first.
std::vector<Group> groups_of(const Peer& peer, const std::vector<StockLayer>& layers) {
  std::vector<Group> groups;
  Group keys{{}, true, false, 0}, values{{}, false, true, 0};
  for (const StockLayer& layer : layers) {
    groups.push_back({{layer.layer}, true, true, layer.key_error + layer.value_error});
    keys.layers.push_back(layer.layer), keys.error += layer.key_error;
    values.layers.push_back(layer.layer), values.error += layer.value_error;
  }
  if (peer.vllm.empty()) groups = {keys, values};
  std::ranges::stable_sort(groups, std::greater(), &Group::error);
  return groups;
}

/// The options that make an engine store what the mixture says. Layers that are limited to a window were measured
/// exact, and layers that read the cache of another have its type.
std::string setting_of(const Peer& peer, const StockMixture& mixture, const ModelConfig& config) {
  if (peer.vllm.empty()) {
    return fmt::format("--cache-type-k {} --cache-type-v {}", mixture.keys ? "f16" : peer.llama_cpp,
                       mixture.values ? "f16" : peer.llama_cpp);
  }
  const std::vector<int> measured = config.cache_layers();
  bool skips_windows = false;
  std::vector<std::string> skipped;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.block(layer).attends()) continue;
    const int cache = config.cache_of(layer);
    skips_windows = skips_windows || !std::ranges::binary_search(measured, cache);
    if (std::ranges::binary_search(mixture.layers, cache)) skipped.push_back(std::to_string(layer));
  }
  if (skips_windows) skipped.insert(skipped.begin(), "sliding_window");
  return "--kv-cache-dtype " + peer.vllm +
         (skipped.empty() ? "" : fmt::format(" --kv-cache-dtype-skip-layers {}", fmt::join(skipped, " ")));
}

/// The method with the first of the groups in bfloat16.
StockMixture mixture_of(const Peer& peer, KvMethod& method, const std::vector<Group>& groups, std::size_t count,
                        const ModelConfig& config) {
  StockMixture mixture;
  for (const Group& group : std::span(groups).first(count)) {
    for (const int layer : group.layers) {
      if (group.keys) method.layers.at(layer).key = {.quantized = false};
      if (group.values) method.layers.at(layer).value = {.quantized = false};
    }
    mixture.layers.insert(mixture.layers.end(), group.layers.begin(), group.layers.end());
    mixture.keys = mixture.keys || group.keys, mixture.values = mixture.values || group.values;
  }
  std::ranges::sort(mixture.layers);
  mixture.setting = setting_of(peer, mixture, config);
  mixture.bits = bits_per_element(method, 1).fp16_params;
  return mixture;
}

/// Measures mixtures until the fewest groups are known with which the limit holds: one, twice as many and so on, then
/// between the last two.
void search(const std::vector<Group>& groups, StockPlan& plan,
            const std::function<StockMixture(std::size_t)>& measured) {
  const auto holds = [&](std::size_t count) {
    plan.tried.push_back(measured(count));
    return plan.tried.back().model.kld_mean <= plan.limit;
  };
  std::size_t low = 0, high = groups.size();  // too few, and enough
  if (holds(0)) return;
  while (high - low > 1) {
    const std::size_t count =
        high < groups.size() ? (low + high) / 2 : std::clamp<std::size_t>(2 * low, 1, groups.size() - 1);
    (holds(count) ? high : low) = count;
  }
  std::ranges::stable_sort(plan.tried, {}, [](const StockMixture& mixture) { return mixture.layers.size(); });
}

double largest_of(HeadsView x) {
  std::vector<float> rows(static_cast<std::size_t>(x.num_tokens * x.num_heads * x.head_dim));
  x.token_rows(0, x.num_tokens, rows.data());
  return methods::largest_magnitude(rows);
}

std::vector<Peer> stock_peers(std::vector<std::string> names) {
  const std::vector<std::string> known = stock_caches();
  if (names == std::vector<std::string>{"all"}) names = known;
  std::vector<Peer> found;
  for (const std::string& name : names) {
    if (std::ranges::find(known, name) == known.end()) {
      throw UsageError("no engine has a cache \"" + name + "\"", "--stock",
                       "choose from " + joined(known) + "; or all");
    }
    found.push_back(peer_named(name));
  }
  return found;
}

}  // namespace
}  // namespace verify

std::vector<std::string> stock_caches() {
  std::vector<std::string> names;
  for (const Peer& peer : peers()) {
    if (!peer.vllm.empty() || !peer.llama_cpp.empty()) names.push_back(peer.name);
  }
  return names;
}

void plan_stock_caches(VerifyReport& report, std::vector<std::string> names, const VerifyInputs& inputs,
                       const VerifyOptions& options, Backend& backend, Status& status) {
  using namespace verify;
  const std::vector<Peer> caches = stock_peers(std::move(names));
  if (inputs.runner == nullptr || inputs.model_data.texts.empty()) {
    throw UsageError("stock caches are measured in the model", "--stock", "give --model with --text or --tokens");
  }
  const ModelConfig& config = inputs.runner->config();
  std::vector<LayerShape> shapes;
  for (const int layer : config.cache_layers()) {
    const MixerSpec& mixer = config.block(layer).mixer;
    shapes.push_back({layer, mixer.head_dim, mixer.num_kv_heads, mixer.value_dim});
  }
  std::vector<KvMethod> methods;
  for (const Peer& peer : caches) methods.push_back(make_baseline(peer.name, shapes, {0, 0}, 0));

  const ModelData data{.texts = inputs.model_data.texts};
  const bool to_the_end = runs_texts_together(*inputs.runner, data, {methods.front()});
  const auto source =
      open_live(*inputs.runner, data.texts, {.layers = inputs.layers, .to_the_end = to_the_end}, status);
  std::map<int, StockLayer> scales;
  for (const int layer : source->layer_ids()) scales[layer].layer = layer;
  const auto take_scales = [&](int layer, LayerStream& stream, std::int64_t) {
    StockLayer& found = scales.at(layer);
    stream.rewind();
    for (QkvChunk chunk; stream.next(chunk);) {
      found.k_scale = std::max(found.k_scale, largest_of(chunk.view.k) / methods::kLargestE4M3);
      found.v_scale = std::max(found.v_scale, largest_of(chunk.view.v) / methods::kLargestE4M3);
    }
    return DataMoments();
  };
  const MeasurePlan attention{methods, take_scales, inputs.layers, options.max_queries, options.precision, {0, 0}};
  const Measurements found = measure_source(*source, attention, backend, status);
  const std::unique_ptr<FinalStates> exact = to_the_end ? source->final_states() : nullptr;

  for (std::size_t m = 0; m < caches.size(); ++m) {
    StockPlan& plan = report.stock.emplace_back(
        StockPlan{caches[m].name, caches[m].description, options.thresholds.max_kld.value_or(kStockKld), {}, {}});
    for (std::size_t i = 0; i < found.layers.size(); ++i) {
      const AttentionMetrics errors = found.methods[m].layers[i].metrics();
      StockLayer& layer = plan.layers.emplace_back(scales.at(found.layers[i]));
      layer.key_error = errors.output_rel_error_k_only, layer.value_error = errors.output_rel_error_v_only;
    }
    const std::vector<Group> groups = groups_of(caches[m], plan.layers);
    search(groups, plan, [&](std::size_t count) {
      KvMethod method = methods[m];
      StockMixture mixture = mixture_of(caches[m], method, groups, count, config);
      mixture.model =
          measure_model(*inputs.runner, data, {method}, options.precision, backend, status, exact.get()).front();
      return mixture;
    });
  }
  report.data["stock"] = {{"data_sha256", source->calibration().data_sha256},
                          {"tokens", found.tokens},
                          {"computed_on", inputs.runner->description()}};
}

}  // namespace oscar
