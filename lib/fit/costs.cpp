// SPDX-License-Identifier: MIT
#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "fit/take.hpp"
#include "measure/attention/attention_metrics.hpp"
#include "measure/keys_read.hpp"
#include "measure/predictions/model_metrics.hpp"
#include "model/tokenizer/tokens.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

/// On how much text it is asked what errors cost: at most so many tokens of each text.
struct CostPlan {
  std::size_t texts, tokens;
};
constexpr CostPlan kCostOnGpu{16, 2048}, kCostOnCpu{8, 2048};
/// Of fewer texts tokens are drawn more often, so that there are so many samples: with fewer, plans depend on chance.
constexpr std::size_t kCostSamples = 16;

MatrixStack grams_of(std::span<const float> rows, std::int64_t tokens, int heads, int dim, Backend& backend) {
  MatrixStack grams(heads, dim);
  backend.accumulate_grams(std::vector{heads_view(rows, tokens, heads, dim)}, grams);
  return grams;
}

void add_to(MatrixStack& sum, const MatrixStack& part, double factor) {
  if (sum.data.empty()) sum = MatrixStack(part.count, part.dim);
  for (std::size_t i = 0; i < part.data.size(); ++i) sum.data[i] += factor * part.data[i];
}

ErrorCosts read_costs(const std::filesystem::path& path) {
  ErrorCosts costs;
  const SafetensorsFile file(path);
  for (const auto& [name, tensor] : file.tensors()) {
    const std::size_t dot = name.find('.');
    ErrorCost& cost = costs[std::stoi(name.substr(0, dot))];
    (name.substr(dot) == ".key" ? cost.key : cost.value) = MatrixStack::from(file.load(name), name);
  }
  return costs;
}

void write_costs(const std::filesystem::path& path, const ErrorCosts& costs) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& [layer, cost] : costs) {
    for (const auto& [side, stack] : {std::pair{".key", &cost.key}, {".value", &cost.value}}) {
      tensors.emplace_back(std::to_string(layer) + side,
                           Tensor::from({stack->count, stack->dim, stack->dim}, stack->data));
    }
  }
  write_safetensors(path, tensors, {}, Checksums::kYes);
}

}  // namespace

ErrorCosts error_costs(ModelRunner& runner, const HistoryQuestion& question, std::span<const int> layers,
                       const std::map<int, Rotary>& before_rope, Backend& backend, Status& status) {
  std::map<int, std::vector<std::vector<ErrorCost>>>
      parts;  // of each cache: by sequence, of the layers that read it and of the draws
  for (const int layer : layers) parts[layer].resize(question.sequences.size());
  const auto take = [&](int layer, std::size_t s, std::span<const float> key, std::span<const float> value) {
    const auto cache = parts.find(runner.config().cache_of(layer));
    if (cache == parts.end()) return;
    const MixerSpec& mixer = runner.config().block(layer).mixer;
    const std::int64_t tokens = std::ssize(question.sequences[s]);
    std::vector<float> turned_back;  // the gradient by a key before RoPE
    if (const auto turning = before_rope.find(cache->first); turning != before_rope.end()) {
      turned_back.assign(key.begin(), key.end());
      const std::int64_t first = question.first_positions.empty() ? 0 : question.first_positions[s];
      turn(turning->second, Turn::kBack, turned_back, mixer.num_kv_heads, first);
      key = turned_back;
    }
    cache->second[s].push_back({grams_of(key, tokens, mixer.num_kv_heads, mixer.head_dim, backend),
                                grams_of(value, tokens, mixer.num_kv_heads, mixer.value_dim, backend)});
  };
  runner.history_gradients(question, take, status);
  std::size_t tokens = 0;
  for (const TokenSequence& sequence : question.sequences) tokens += sequence.size();
  const double factor = 0.5 / static_cast<double>(tokens) / question.draws;
  ErrorCosts costs;
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

std::vector<TokenSequence> cost_texts(std::vector<TokenSequence> sequences, bool gpu, Windows windows) {
  const CostPlan plan = gpu ? kCostOnGpu : kCostOnCpu;
  for (TokenSequence& text : sequences) text.resize(std::min(text.size(), plan.tokens));
  std::ranges::stable_sort(sequences, std::greater<>(), &TokenSequence::size);
  const auto enough = static_cast<std::size_t>(std::ranges::count_if(
      sequences, [&](const TokenSequence& text) { return 2 * text.size() >= sequences.front().size(); }));
  std::vector<TokenSequence> texts;
  for (std::size_t i = 0, count = std::min(plan.texts, enough); i < count; ++i) {
    texts.push_back(std::move(sequences[(2 * i + 1) * enough / (2 * count)]));
  }
  const ModelData data{.texts = texts};
  require_quantised(keys_of_texts(data, windows), "what errors cost", "--text, --tokens", windows);
  return texts;
}

ErrorCosts costs_on(const std::vector<TokenSequence>& texts, int context, const std::map<int, Rotary>& before_rope,
                    Windows windows, ModelRunner& runner, std::span<const int> layers, const PartialFolder* kept,
                    Backend& backend, Status& status) {
  const std::filesystem::path path = kept != nullptr ? kept->path() / "layer_costs.safetensors" : "";
  if (kept != nullptr && std::filesystem::exists(path)) return read_costs(path);
  const auto draws = static_cast<int>((kCostSamples + texts.size() - 1) / texts.size());
  const HistoryQuestion question{texts, spread_over(context, texts), windows, draws};
  ErrorCosts costs = error_costs(runner, question, layers, before_rope, backend, status);
  if (kept != nullptr) write_costs(path, costs);
  return costs;
}

std::set<int> layers_that_feel_shifts(const ModelRunner& runner) {
  std::set<int> layers;
  for (const auto& [layer, rule] : rules_of(runner)) {
    if (!rule.ignores_shifts()) layers.insert(layer);
  }
  return layers;
}

}  // namespace oscar
