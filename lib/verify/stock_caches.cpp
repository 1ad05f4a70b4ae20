// SPDX-License-Identifier: MIT
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
#include "verify/verify.hpp"

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

/// The options that make an engine store what the mixture says. Layers of a sliding window beside others were measured
/// exact; a layer that reads the cache of another has its type.
std::string setting_of(const Peer& peer, const StockMixture& mixture, const ModelConfig& config) {
  if (peer.vllm.empty()) {
    return fmt::format("--cache-type-k {} --cache-type-v {}", mixture.keys ? "f16" : peer.llama_cpp,
                       mixture.values ? "f16" : peer.llama_cpp);
  }
  const std::vector<int> measured = config.cache_layers();
  bool windows = false;
  std::vector<int> skipped;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.block(layer).attends()) continue;
    windows = windows || !std::ranges::binary_search(measured, config.cache_of(layer));
    if (std::ranges::binary_search(mixture.layers, config.cache_of(layer))) skipped.push_back(layer);
  }
  const char* option = windows || !skipped.empty() ? " --kv-cache-dtype-skip-layers" : "";
  return fmt::format("--kv-cache-dtype {}{}{}{}{}", peer.vllm, option, windows ? " sliding_window" : "",
                     skipped.empty() ? "" : " ", fmt::join(skipped, " "));
}

/// Leaves the first of the groups in bfloat16.
StockMixture mix(const Peer& peer, std::span<const Group> groups, const ModelConfig& config, KvMethod& method) {
  StockMixture mixture;
  for (const Group& group : groups) {
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

/// Measures mixtures until it is known how many groups are enough: none, one, twice as many and so on, then between the
/// last two.
void search(std::size_t groups, const std::function<StockMixture(std::size_t)>& measured, StockPlan& plan) {
  const auto holds = [&](std::size_t count) {
    plan.tried.push_back(measured(count));
    return plan.tried.back().model.kld_mean <= plan.limit;
  };
  if (holds(0)) return;
  for (std::size_t low = 0, high = groups; high - low > 1;) {
    const std::size_t next = std::clamp<std::size_t>(2 * low, 1, groups - 1);
    const std::size_t count = high < groups ? (low + high) / 2 : next;
    (holds(count) ? high : low) = count;
  }
  std::ranges::stable_sort(plan.tried, {}, [](const StockMixture& mixture) { return mixture.layers.size(); });
}

/// The scale with which the largest magnitude is the largest of e4m3.
double scale_of(HeadsView x) { return methods::largest_magnitude(x.floats()) / methods::kLargestE4M3; }

std::vector<KvMethod> methods_of(const std::vector<std::string>& names, const ModelConfig& config) {
  std::vector<LayerShape> shapes;
  for (const int layer : config.cache_layers()) {
    const MixerSpec& mixer = config.block(layer).mixer;
    shapes.push_back({layer, mixer.head_dim, mixer.num_kv_heads, mixer.value_dim});
  }
  std::vector<KvMethod> methods;
  for (const std::string& name : names) methods.push_back(make_baseline(name, shapes, {0, 0}, 0));
  return methods;
}

/// Returns what each method does to each layer by itself.
std::vector<std::vector<StockLayer>> errors_of(const std::vector<KvMethod>& methods, QkvSource& source,
                                               const VerifyOptions& options, Backend& backend, Status& status) {
  std::map<int, StockLayer> layers;
  for (const int layer : source.layer_ids()) layers[layer].layer = layer;
  const auto take_scales = [&](int layer, LayerStream& stream, std::int64_t) {
    StockLayer& found = layers.at(layer);
    stream.rewind();
    for (QkvChunk chunk; stream.next(chunk);) {
      found.k_scale = std::max(found.k_scale, scale_of(chunk.view.k));
      found.v_scale = std::max(found.v_scale, scale_of(chunk.view.v));
    }
    return DataMoments();
  };
  const MeasurePlan plan{methods, take_scales, {}, options.max_queries, options.precision, {0, 0}};
  const Measurements found = measure_source(source, plan, backend, status);
  std::vector<std::vector<StockLayer>> errors(methods.size());
  for (std::size_t m = 0; m < methods.size(); ++m) {
    for (std::size_t i = 0; i < found.layers.size(); ++i) {
      const AttentionMetrics metrics = found.methods[m].layers[i].metrics();
      StockLayer& layer = errors[m].emplace_back(layers.at(found.layers[i]));
      layer.key_error = metrics.output_rel_error_k_only, layer.value_error = metrics.output_rel_error_v_only;
    }
  }
  return errors;
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

void require_stock_caches(const std::vector<std::string>& names) {
  const std::vector<std::string> known = stock_caches();
  for (const std::string& name : names) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw UsageError("no engine has a cache \"" + name + "\"", "--stock", "choose from " + joined(known) + "; or all");
  }
}

void plan_stock_caches(VerifyReport& report, const std::vector<std::string>& names, const VerifyInputs& inputs,
                       const VerifyOptions& options, Backend& backend, Status& status) {
  OSCAR_CHECK(inputs.runner != nullptr && !inputs.model_data.texts.empty());
  const ModelConfig& config = inputs.runner->config();
  const std::vector<KvMethod> methods = verify::methods_of(names, config);
  const ModelData data{.texts = inputs.model_data.texts};
  const bool to_the_end = runs_texts_together(*inputs.runner, data, {methods.front()});
  const auto source = open_live(*inputs.runner, data.texts, {.to_the_end = to_the_end}, status);
  const auto errors = verify::errors_of(methods, *source, options, backend, status);
  const std::unique_ptr<FinalStates> exact = to_the_end ? source->final_states() : nullptr;
  for (std::size_t m = 0; m < methods.size(); ++m) {
    const Peer& peer = peer_named(names[m]);
    StockPlan& plan = report.stock.emplace_back();
    plan = {peer.name, peer.description, options.thresholds.max_kld.value_or(kStockKld), errors[m], {}};
    const std::vector<verify::Group> groups = verify::groups_of(peer, plan.layers);
    const auto measured = [&](std::size_t count) {
      std::vector<KvMethod> method{methods[m]};
      StockMixture mixture = verify::mix(peer, std::span(groups).first(count), config, method.front());
      mixture.model =
          measure_model(*inputs.runner, data, method, options.precision, backend, status, exact.get()).front();
      return mixture;
    };
    verify::search(groups.size(), measured, plan);
  }
  report.data["stock"] = {{"data_sha256", source->calibration().data_sha256},
                          {"tokens", source->calibration().tokens},
                          {"computed_on", inputs.runner->description()}};
  if (!report.set.empty()) return;
  report.windows = {0, 0};
  report.set = {{"path", ""}, {"format", "none"}, {"model", to_json(config.identity)}};
}

}  // namespace oscar
