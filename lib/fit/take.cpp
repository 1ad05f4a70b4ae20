// SPDX-License-Identifier: MIT
#include "fit/take.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "base/version.hpp"
#include "dump/source.hpp"
#include "measure/attention/attention_metrics.hpp"
#include "method/coded_levels.hpp"
#include "model/tokenizer/tokens.hpp"
#include "moments/sums.hpp"

namespace oscar {
namespace {

struct LayerShape {
  int heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t tokens = 0;
};

/// Reads no rows.
LayerShape shape_of(int layer_id, LayerStream& rows) {
  LayerShape shape;
  rows.rewind();
  for (QkvChunk chunk; rows.skip(chunk);) {
    shape.heads = chunk.view.k.num_heads, shape.key_dim = chunk.view.k.head_dim,
    shape.value_dim = chunk.view.v.head_dim;
    shape.tokens += chunk.view.k.num_tokens;
  }
  if (shape.tokens == 0) throw DataError("no tokens", "layer " + std::to_string(layer_id), "dump again");
  return shape;
}

/// A set tells one number of KV heads, one size of keys, and one of values.
void require_usual(const LayerShape& shape, const ModelIdentity& model, const std::string& layer) {
  const int value_dim = model.value_dim > 0 ? model.value_dim : model.head_dim;
  constexpr const char* kRemedy = "sets are for models whose layers have one shape; --layers takes some of them";
  if (model.num_key_value_heads > 0 && shape.heads != model.num_key_value_heads) {
    throw DataError(fmt::format("the layer has {} KV heads, the model {}", shape.heads, model.num_key_value_heads),
                    layer, kRemedy);
  }
  if (model.head_dim == 0 || (shape.key_dim == model.head_dim && shape.value_dim == value_dim)) return;
  throw DataError(fmt::format("heads of keys and values have {} and {} channels, in the model {} and {}", shape.key_dim,
                              shape.value_dim, model.head_dim, value_dim),
                  layer, kRemedy);
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

/// Calls take(chunk, token) for every n-th token that stands behind the first `skipped` of its sequence, so that about
/// `wanted` are taken.
template <class Take>
void sample_tokens(LayerStream& rows, std::int64_t tokens, std::int64_t wanted, int skipped, const Take& take) {
  const std::int64_t stride = std::max<std::int64_t>(1, tokens / std::max<std::int64_t>(wanted, 1));
  std::int64_t seen = 0;
  rows.rewind();
  for (QkvChunk chunk; rows.next(chunk);) {
    for (const SequenceRange& range : chunk.sequences) {
      for (std::int64_t t = range.begin + skipped; t < range.end; ++t) {
        if (seen++ % stride == stride / 2) take(chunk, t);
      }
    }
  }
}

/// Keys before RoPE, without those of the sink, which are never coded.
void take_keys_before_rope(LayerStream& rows, std::int64_t tokens, const TakeOptions& options, LayerStatistics& layer) {
  KeysBeforeRope keys(rows, *layer.rotary);
  sample_tokens(keys, tokens, options.sample_rows, options.windows.sink,
                [&](const QkvChunk& chunk, std::int64_t t) { add_rows(chunk.view.k, t, layer.keys_before_rope); });
  if (!layer.keys_before_rope.empty()) return;
  throw DataError("too few tokens behind the first " + std::to_string(options.windows.sink),
                  "layer " + std::to_string(layer.layer_id), "give more or longer sequences");
}

LayerStatistics take_layer(int id, LayerStream& rows, const ModelIdentity& model, const TakeOptions& options,
                           std::int64_t context, const ErrorCosts& costs, const MeasureDamage& measure,
                           Backend& backend) {
  const LayerShape shape = shape_of(id, rows);
  require_usual(shape, model, "layer " + std::to_string(id));
  if (options.coded) {
    const std::string why = why_not_coded(id, shape.key_dim, shape.value_dim);
    if (!why.empty()) throw_not_coded(why);
  }
  LayerStatistics layer{.layer_id = id, .key_dim = shape.key_dim, .value_dim = shape.value_dim};
  const auto turning = options.coded ? options.rotary.find(id) : options.rotary.end();
  std::optional<RowsBeforeRope> base;
  const auto cost = costs.find(id);
  if (turning != options.rotary.end()) {  // queries tell what errors of keys cost where no model does
    base.emplace(rows, *(layer.rotary = turning->second), /*with_queries=*/cost == costs.end());
  }
  const SumsWanted wanted{options.moments, options.windows, options.coded};
  layer.first = take(base ? *base : rows, wanted, backend);
  layer.first_data = {0};
  if (layer.first.fisher) (void)mean(*layer.first.fisher, options.windows);  // says so if there is no history
  if (options.moments.contains(Moment::kSst)) {
    layer.sst = take_sst(rows, layer.first.sums.at(Moment::kQqt).mean(), backend);
  }
  layer.centred = !options.uncentred.contains(id);
  sample_tokens(rows, shape.tokens, options.sample_rows, 0, [&](const QkvChunk& chunk, std::int64_t t) {
    add_rows(chunk.view.k, t, layer.key_rows);
    add_rows(chunk.view.v, t, layer.value_rows);
  });
  if (base) take_keys_before_rope(rows, shape.tokens, options, layer);
  if (options.clip) layer.sample = sample_layer(rows, options.windows, *options.clip);
  if (!options.coded) return layer;
  if (cost != costs.end()) layer.cost = cost->second;
  if (cost == costs.end() && measure) layer.damage = damage_of(layer, options.windows, context, measure, backend);
  return layer;
}

LayerStatistics read_taken(const std::filesystem::path& path, int layer_id) {
  std::vector<LayerStatistics> layers = read_statistics({path}).layers;
  if (layers.size() == 1 && layers.front().layer_id == layer_id) return std::move(layers.front());
  throw DataError("this is not layer " + std::to_string(layer_id), path.string(), "remove it");
}

/// All that decides what is taken; bits and scopes do not.
Json record_of(const QkvSource& source, const TakeOptions& options) {
  Json recipe = options.recipe;
  for (const Moment moment : options.moments) recipe["sums"].push_back(name_of(moment));
  if (options.clip) recipe["clip_seed"] = options.clip->seed;
  return {{"oscar_version", kVersion},
          {"model", to_json(source.model())},
          {"calibration", to_json(source.calibration())},
          {"layers", source.layer_ids()},
          {"recipe", std::move(recipe)},
          {"windows", {options.windows.sink, options.windows.recent}}};
}

}  // namespace

Statistics take(QkvSource& source, const TakeOptions& options, const ErrorCosts& costs, const MeasureDamage& measure,
                const PartialFolder* folder, Backend& backend, Status& status) {
  Statistics out{.model = source.model(), .data = {source.calibration()}, .windows = options.windows, .layers = {}};
  out.recipe = options.recipe, out.clip = options.clip;
  const std::vector<int>& ids = source.layer_ids();
  out.layers.resize(ids.size());
  std::vector<int> missing;
  std::vector<std::size_t> places;  // of those in `ids`
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (folder == nullptr || !folder->has(ids[i])) missing.push_back(ids[i]), places.push_back(i);
  }
  // A trial is measured on the layer's rows.
  const auto is_tried = [&](int id) { return options.coded && measure && !costs.contains(id); };
  const int lanes = std::ranges::any_of(ids, is_tried) ? 1 : backend.work_shape().concurrent_layers;
  const std::int64_t context = context_of(options.recipe, source.calibration());
  std::atomic<std::int64_t> done = 0;
  const auto take_one = [&](std::size_t i, const std::unique_ptr<LayerStream>& rows) {
    LayerStatistics layer = take_layer(missing[i], *rows, out.model, options, context, costs, measure, backend);
    if (folder != nullptr) {
      Statistics alone{.model = out.model, .data = out.data, .windows = out.windows, .layers = {std::move(layer)}};
      alone.recipe = out.recipe, alone.clip = out.clip;
      write_statistics(folder->file_of(missing[i]), alone);
    } else {
      out.layers[places[i]] = std::move(layer);
    }
    status.progress("layers taken", ++done, std::ssize(missing));
  };
  if (!missing.empty()) for_each_layer(source, missing, lanes, take_one);
  if (folder == nullptr) return out;
  parallel_for(ids.size(), [&](std::size_t i) { out.layers[i] = read_taken(folder->file_of(ids[i]), ids[i]); });
  return out;
}

std::string why_not_coded(int layer_id, int key_dim, int value_dim) {
  for (const auto& [side, dim] : {std::pair{"keys", key_dim}, {"values", value_dim}}) {
    if (dim % kLevelBlock == 0) continue;
    return fmt::format("heads of {} have {} channels in layer {}, and the coded cache takes multiples of {}", side, dim,
                       layer_id, kLevelBlock);
  }
  return "";
}

void throw_not_coded(const std::string& why) {
  throw DataError(why, "--recipe coded", "fit another recipe, or leave such layers out with --layers");
}

std::string why_not_coded(const ModelConfig& config, std::vector<int> layers) {
  if (std::string why = config.why_irreplaceable(); !why.empty()) return "the coded cache does not take " + why;
  if (layers.empty()) layers = config.cache_layers();
  for (const int id : layers) {
    if (id >= config.num_layers) continue;  // told where layers are opened
    const MixerSpec& mixer = config.block(id).mixer;
    if (std::string why = why_not_coded(id, mixer.head_dim, mixer.value_dim); !why.empty()) return why;
  }
  return "";
}

std::string why_not_coded(QkvSource& dump) {
  for (const int id : dump.layer_ids()) {
    QkvChunk chunk;
    if (!dump.open(id)->skip(chunk)) continue;  // told where it is taken
    if (std::string why = why_not_coded(id, chunk.view.k.head_dim, chunk.view.v.head_dim); !why.empty()) return why;
  }
  return "";
}

namespace {

/// How keys turn in the layers that can store them before RoPE. Says which cannot.
std::map<int, Rotary> rotary_by_layer(const FitData& data, Status& status) {
  std::map<int, Rotary> found;
  std::map<std::string, std::vector<int>> others;
  const ModelIdentity& model = data.source.model();
  for (const int id : data.source.layer_ids()) {
    std::optional<Rotary> rotary;
    std::string why = "the dump does not tell how keys turn";
    if (data.runner != nullptr) {
      const MixerSpec& mixer = data.runner->config().block(id).mixer;
      why = why_not_before_rope(mixer);
      if (why.empty()) rotary = rotary_of(mixer);
      if (why.empty()) why = "keys do not turn";
    } else if (model.rope_theta > 0 && model.head_dim > 0 && model.head_dim % 2 == 0) {
      rotary = plain_rotary(model.rope_theta, model.head_dim);
    }
    rotary ? void(found.emplace(id, std::move(*rotary))) : others[why].push_back(id);
  }
  for (const auto& [why, layers] : others) {
    status.notice(fmt::format("the keys of {} are coded as they are, not before RoPE: {}",
                              layers.size() == data.source.layer_ids().size()
                                  ? "all layers"
                                  : fmt::format("layer{} {}", layers.size() == 1 ? "" : "s", fmt::join(layers, ", ")),
                              why));
  }
  return found;
}

}  // namespace

Statistics take(const FitData& data, const FitOptions& options, const OpenPartial& partial, Backend& backend,
                Status& status) {
  const FitPlan plan = plan_parts(options, data.uncodable.empty());
  if (plan.coded && !data.uncodable.empty()) throw_not_coded(data.uncodable);
  const ModelIdentity& model = data.source.model();
  if (model.head_dim > 0) plan.require_groups(model.head_dim, model.value_dim > 0 ? model.value_dim : model.head_dim);
  TakeOptions taken{.moments = plan.moments(), .windows = options.windows, .coded = plan.coded, .uncentred = {}};
  if (!plan.rotations.empty() && options.clip == "auto") taken.clip = options.clip_fit;
  if (taken.moments.empty()) taken.moments = {Moment::kVtv};  // a file has sums
  taken.recipe = {{"sample_rows", taken.sample_rows}};
  std::vector<TokenSequence> texts;  // about which the model is asked; none of a dump
  const bool live = data.runner != nullptr;
  if (live) taken.uncentred = layers_that_feel_shifts(*data.runner);
  if (plan.coded && live) {
    const bool gpu = !backend.description().starts_with("cpu");
    texts = cost_texts({data.sequences.begin(), data.sequences.end()}, gpu, options.windows);
  } else if (plan.coded) {
    status.notice("a dump does not tell what errors cost the model: bits follow errors of attention outputs");
  }
  if (plan.coded) {
    taken.recipe = {{"plain_part", live ? kPlainCostPart : kPlainQueryPart},
                    {"sample_rows", taken.sample_rows},
                    {"damage", live ? "model KL" : "attention output error"},
                    {"damage_tokens", describe(texts).tokens}};
  }
  if (plan.coded && options.keys == "before-rope") {
    taken.rotary = rotary_by_layer(data, status);
    if (!taken.rotary.empty()) taken.recipe["keys"] = options.keys;
  }
  if (data.context > 0) taken.recipe["context"] = data.context;
  if (!data.uncodable.empty()) taken.recipe[kNotCoded] = data.uncodable;
  const PartialFolder* const kept = partial ? partial(record_of(data.source, taken)) : nullptr;
  ErrorCosts costs;
  if (!texts.empty()) {
    costs = costs_on(texts, data.context, taken.rotary, options.windows, *data.runner, data.source.layer_ids(), kept,
                     backend, status);
  }
  const MeasureDamage measure = [&](const CodedPart& coded) {
    return measure_attention_damage(data.source, coded, backend);
  };
  return take(data.source, taken, costs, measure, kept, backend, status);
}

}  // namespace oscar
