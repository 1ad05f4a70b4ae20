// SPDX-License-Identifier: MIT
#include "fit/error_cost.hpp"

#include "kernels/types.hpp"

namespace oscar {
namespace {

MatrixStack grams_of(std::span<const float> rows, std::int64_t tokens, int heads, int dim, Backend& backend) {
  MatrixStack grams(heads, dim);
  backend.accumulate_grams(std::vector{heads_view(rows, tokens, heads, dim)}, grams);
  return grams;
}

void add_to(MatrixStack& sum, const MatrixStack& part, double factor) {
  if (sum.data.empty()) sum = MatrixStack(part.count, part.dim);
  for (std::size_t i = 0; i < part.data.size(); ++i) sum.data[i] += factor * part.data[i];
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
    const MixerSpec& mixer = runner.config().blocks[static_cast<std::size_t>(layer)].mixer;
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

}  // namespace oscar
