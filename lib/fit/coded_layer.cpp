// SPDX-License-Identifier: MIT
#include "fit/coded_layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/errors.hpp"
#include "kernels/types.hpp"
#include "moments/take.hpp"

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

/// Rows of tokens, (n, Hkv, d).
struct TokenRows {
  int heads = 0, dim = 0;
  std::vector<float> values = {};

  /// Adds those of the tokens that `takes` says.
  template <class Takes>
  void add(const HeadsView& x, const Takes& takes) {
    heads = x.num_heads, dim = x.head_dim;
    for (std::int64_t t = 0; t < x.num_tokens; ++t) {
      if (!takes(t)) continue;
      for (int head = 0; head < heads; ++head) {
        values.resize(values.size() + static_cast<std::size_t>(dim));
        x.row(t, head, std::span(values).last(static_cast<std::size_t>(dim)));
      }
    }
  }

  [[nodiscard]] std::vector<std::vector<float>> by_head() const {
    std::vector<std::vector<float>> rows(static_cast<std::size_t>(heads));
    for (auto row = values.begin(); row != values.end();) {
      for (std::vector<float>& own : rows) own.insert(own.end(), row, row + dim), row += dim;
    }
    return rows;
  }
};

/// Every n-th token, so that about `wanted` are taken.
void take_rows(LayerStream& stream, std::int64_t tokens, std::int64_t wanted, CodedLayerData& data) {
  const std::int64_t stride = std::max<std::int64_t>(1, tokens / std::max<std::int64_t>(wanted, 1));
  stream.rewind();
  QkvChunk chunk;
  TokenRows keys, values;
  for (std::int64_t first = 0; stream.next(chunk); first += chunk.view.k.num_tokens) {
    const auto takes = [&](std::int64_t t) { return (first + t) % stride == stride / 2; };
    keys.add(chunk.view.k, takes);
    values.add(chunk.view.v, takes);
  }
  data.key_rows = keys.by_head(), data.value_rows = values.by_head();
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

void scale(MatrixStack& matrices, double factor) {
  for (double& entry : matrices.data) entry *= factor;
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

CodedLayerData take_coded_layer(int layer_id, LayerStream& stream, const CodedOptions& options, const ErrorCost* cost,
                                Backend& backend) {
  CodedLayerData data;
  AdditiveMoments& sums = data.sums.first;
  SumsWanted wanted{.moments = options.more, .windows = options.windows, .value_reads = true};
  wanted.moments.insert({Moment::kFisher, Moment::kQqt, Moment::kVtv});
  wanted.moments.erase(Moment::kSst);
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
  if (cost != nullptr) data.cost = *cost;
  data.centred = !options.uncentred.contains(layer_id);
  take_rows(stream, tokens_of(data), options.sample_rows, data);
  return data;
}

std::int64_t tokens_of(const CodedLayerData& data) {
  return static_cast<std::int64_t>(data.sums.first.sums.at(Moment::kVtv).total.front());
}

CodedBases bases_of(const CodedLayerData& data, Backend& backend) {
  const AdditiveMoments& sums = data.sums.first;
  const FisherSums& fisher = sums.fisher.value();
  const MomentSums &queries = sums.sums.at(Moment::kQqt), &values = sums.sums.at(Moment::kVtv);
  MatrixStack key_cost = data.cost ? data.cost->key : fisher.query;
  if (!data.cost) scale(key_cost, 1 / queries.total.front());
  const MatrixStack value_cost = data.cost ? data.cost->value : identity(fisher.value.count, fisher.value.dim);
  const double plain_part = data.cost ? kPlainCostPart : kPlainQueryPart;
  return {coded_key_basis(key_cost, queries.mean(), plain_part, fisher, data.centred, backend),
          coded_value_basis(value_cost, plain_part, fisher.value, values.mean(), backend)};
}

CodedSpectrum spectrum_of(const CodedBasis& basis, int layer_id, const std::string& side, double weight) {
  const MatrixStack& write = basis.transform.rotation;
  return {layer_id, side, write.count, write.dim, basis.lambda, weight};
}

}  // namespace oscar
