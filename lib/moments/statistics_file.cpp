// SPDX-License-Identifier: MIT
#include "moments/statistics_file.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/errors.hpp"
#include "base/version.hpp"

namespace oscar {
namespace {

constexpr const char* kSchema = "oscar.statistics.v1";
constexpr Moment kSums[] = {Moment::kQqt, Moment::kKtk, Moment::kVtv};
constexpr const char* kParts[] = {
    "qqt.sums",       "qqt.total",        "ktk.sums",          "ktk.total",       "vtv.sums",           "vtv.total",
    "sst.sums",       "sst.total",        "keys.sums",         "keys.total",      "fisher.query",       "fisher.key",
    "fisher.key_sum", "fisher.weight",    "fisher.value",      "cost.key",        "cost.value",         "key.rows",
    "value.rows",     "before_rope.rows", "fisher.base_query", "fisher.base_key", "fisher.base_key_sum"};
constexpr const char* kSampleParts[] = {".q", ".k", ".v", ".positions"};
constexpr char kTakeAgain[] = "take the statistics again";

std::string prefix_of(int layer_id) { return "layer_" + std::to_string(layer_id) + "."; }
std::string sample_of(std::size_t i) { return "clip." + std::to_string(i); }

Json to_json(const Statistics& statistics) {
  Json layers = Json::array(), data = Json::array();
  for (const LayerStatistics& layer : statistics.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"key_dim", layer.key_dim},
                      {"value_dim", layer.value_dim},
                      {"first_data", layer.first_data}});
    if (!layer.centred) layers.back()["centred"] = false;
    if (layer.rotary) layers.back()["rotary"] = oscar::to_json(*layer.rotary);
    if (layer.damage) layers.back()["damage"] = {{"key", layer.damage->key}, {"value", layer.damage->value}};
  }
  for (const CalibrationData& each : statistics.data) data.push_back(oscar::to_json(each));
  Json json{{"schema", kSchema},
            {"oscar_version", kVersion},
            {"model", oscar::to_json(statistics.model)},
            {"data", std::move(data)},
            {"windows", {{"sink", statistics.windows.sink}, {"recent", statistics.windows.recent}}},
            {"layers", std::move(layers)}};
  if (!statistics.recipe.empty()) json["recipe"] = statistics.recipe;
  if (const auto& clip = statistics.clip) {
    json["clip"] = {{"sample_tokens", clip->sample_tokens},
                    {"max_sequence_tokens", clip->max_sequence_tokens},
                    {"query_rows", clip->query_rows},
                    {"seed", clip->seed}};
  }
  return json;
}

Statistics statistics_from_json(const Json& json, const std::string& where) {
  Statistics out;
  out.model = model_identity_from_json(json["model"]);
  for (const Json& each : json["data"]) out.data.push_back(calibration_data_from_json(each));
  out.windows = {json["windows"]["sink"].get<int>(), json["windows"]["recent"].get<int>()};
  for (const Json& each : json["layers"]) {
    LayerStatistics& layer = out.layers.emplace_back();
    layer.layer_id = each["layer_id"].get<int>();
    layer.key_dim = each["key_dim"].get<int>(), layer.value_dim = each["value_dim"].get<int>();
    layer.first_data = each["first_data"].get<std::vector<std::size_t>>();
    layer.centred = each.value("centred", true);
    if (each.contains("rotary")) layer.rotary = rotary_from_json(each["rotary"], where);
    if (each.contains("damage")) layer.damage = ErrorDamage{each["damage"]["key"], each["damage"]["value"]};
  }
  out.recipe = json.value("recipe", Json::object());
  if (json.contains("clip")) {
    const Json& clip = json["clip"];
    out.clip = SampleOptions{.sample_tokens = clip["sample_tokens"],
                             .max_sequence_tokens = clip["max_sequence_tokens"],
                             .query_rows = clip["query_rows"],
                             .seed = clip["seed"]};
  }
  return out;
}

using Tensors = std::vector<std::pair<std::string, Tensor>>;

Tensor tensor_of(const MatrixStack& stack) {
  return Tensor::from({stack.count, stack.dim, stack.dim}, std::span<const double>(stack.data));
}
Tensor tensor_of(const std::vector<double>& values) {
  return Tensor::from({static_cast<std::int64_t>(values.size())}, std::span<const double>(values));
}

/// Rows of each head, one after the other.
Tensor tensor_of(const std::vector<std::vector<float>>& heads, std::int64_t dim) {
  std::vector<float> rows;
  for (const std::vector<float>& own : heads) rows.insert(rows.end(), own.begin(), own.end());
  return Tensor::from({std::ssize(heads), std::ssize(heads.front()) / dim, dim}, std::span<const float>(rows));
}

void add_moments(const std::string& name, const MomentSums& moments, Tensors& tensors) {
  tensors.emplace_back(name + ".sums", tensor_of(moments.sums));
  tensors.emplace_back(name + ".total", tensor_of(moments.total));
}

void add_layer(const LayerStatistics& layer, Tensors& tensors) {
  const std::string prefix = prefix_of(layer.layer_id);
  for (const auto& [moment, sums] : layer.first.sums) {
    add_moments(prefix + std::string(name_of(moment)), sums, tensors);
  }
  if (layer.sst) add_moments(prefix + "sst", *layer.sst, tensors);
  if (layer.first.keys) {
    tensors.emplace_back(prefix + "keys.sums", tensor_of(layer.first.keys->sums));
    tensors.emplace_back(prefix + "keys.total", tensor_of(std::vector<double>{layer.first.keys->tokens}));
  }
  if (const auto& fisher = layer.first.fisher) {
    tensors.emplace_back(prefix + "fisher.query", tensor_of(fisher->query));
    tensors.emplace_back(prefix + "fisher.key", tensor_of(fisher->key));
    tensors.emplace_back(prefix + "fisher.key_sum", tensor_of(fisher->key_sum));
    tensors.emplace_back(prefix + "fisher.weight", tensor_of(fisher->weight));
    if (fisher->base_key.count > 0) {
      tensors.emplace_back(prefix + "fisher.base_key", tensor_of(fisher->base_key));
      tensors.emplace_back(prefix + "fisher.base_key_sum", tensor_of(fisher->base_key_sum));
    }
    for (const auto& [name, stack] : {std::pair{"value", &fisher->value}, {"base_query", &fisher->base_query}}) {
      if (stack->count > 0) tensors.emplace_back(prefix + "fisher." + name, tensor_of(*stack));
    }
  }
  if (layer.cost) {
    tensors.emplace_back(prefix + "cost.key", tensor_of(layer.cost->key));
    tensors.emplace_back(prefix + "cost.value", tensor_of(layer.cost->value));
  }
  if (!layer.key_rows.empty()) {
    tensors.emplace_back(prefix + "key.rows", tensor_of(layer.key_rows, layer.key_dim));
    tensors.emplace_back(prefix + "value.rows", tensor_of(layer.value_rows, layer.value_dim));
  }
  if (layer.rotary) tensors.emplace_back(prefix + "before_rope.rows", tensor_of(layer.keys_before_rope, layer.key_dim));
  for (std::size_t i = 0; i < layer.sample.size(); ++i) {
    const SampledSequence& each = layer.sample[i];
    const std::string own = prefix + sample_of(i);
    tensors.emplace_back(own + ".q", each.q), tensors.emplace_back(own + ".k", each.k);
    tensors.emplace_back(own + ".v", each.v);
    Tensor& positions = tensors.emplace_back(own + ".positions", Tensor(DType::kI64, {each.q.shape[0]})).second;
    std::memcpy(positions.data.data(), each.query_positions.data(), positions.data.size());
  }
}

/// KV heads, of which every sum must have as many.
int heads_of(const LayerStatistics& layer, const std::string& where) {
  std::vector<int> counts;
  for (const auto& [moment, sums] : layer.first.sums) counts.push_back(sums.sums.count);
  if (layer.sst) counts.push_back(layer.sst->sums.count);
  if (layer.first.fisher) {
    counts.push_back(layer.first.fisher->query.count);
    counts.push_back(layer.first.fisher->key.count);
    if (layer.rotary) counts.push_back(layer.first.fisher->base_key.count);
    if (layer.rotary && !layer.cost) counts.push_back(layer.first.fisher->base_query.count);
    if (layer.first.fisher->value.count > 0) counts.push_back(layer.first.fisher->value.count);
  }
  if (layer.cost) counts.push_back(layer.cost->key.count), counts.push_back(layer.cost->value.count);
  if (counts.empty()) throw DataError("no sums", where, kTakeAgain);
  if (std::ranges::count(counts, counts.front()) == std::ssize(counts)) return counts.front();
  throw DataError("sums of different numbers of heads", where, kTakeAgain);
}

// Moments that a server kept (dump/server_file.hpp).

Statistics manifest_of(const ServerFile& file) {
  if (file.has_rows) throw DataError("these are rows", file.path, "give their folder as a dump: --dump FOLDER");
  Statistics out{.model = file.model, .data = {file.data}, .windows = {}, .layers = {}};
  if (file.ranks > 1) out.heads = {file.rank * file.kv_heads, file.kv_heads, file.model.num_key_value_heads};
  for (const int id : file.layer_ids) {
    out.layers.push_back(
        {.layer_id = id, .key_dim = file.model.head_dim, .value_dim = file.value_dim, .first_data = {0}});
  }
  return out;
}

/// M_q is a mean over tokens and query heads, and S_v one over tokens by their scores; the others are sums.
void add_sums(const ServerFile& file, LayerStatistics& layer) {
  const auto tokens = static_cast<double>(file.data.tokens), queries = tokens * file.group;
  const auto sums = [&](const char* name, int dim, double total) {
    return MomentSums{MatrixStack::from(file.tensor(layer.layer_id, name, {file.kv_heads, dim, dim}), name),
                      std::vector<double>(static_cast<std::size_t>(file.kv_heads), total)};
  };
  layer.first.sums[Moment::kQqt] = sums("M_q", layer.key_dim, queries);
  for (double& entry : layer.first.sums[Moment::kQqt].sums.data) entry *= queries;
  layer.first.sums[Moment::kKtk] = sums("M_k", layer.key_dim, tokens);
  layer.sst = sums("S_v", layer.value_dim, 1);
  layer.first.keys = KeySums{file.tensor(layer.layer_id, "k_sum", {file.kv_heads, layer.key_dim}).to_doubles(), tokens};
}

}  // namespace

void write_statistics(const std::filesystem::path& path, const Statistics& statistics) {
  Tensors tensors;
  for (const LayerStatistics& layer : statistics.layers) add_layer(layer, tensors);
  write_safetensors(path, tensors, {{"schema", kSchema}, {"manifest", to_json(statistics).dump()}}, Checksums::kYes);
}

StatisticsFile::StatisticsFile(const std::filesystem::path& path) : path_(path.string()) {
  if (path.extension() == ".pt") {
    manifest_ = manifest_of(server_.emplace(path));
    return;
  }
  file_.emplace(path);
  const auto again = [&](const char* what) { return DataError(what, path_, kTakeAgain); };
  const auto& metadata = file_->metadata();
  if (!metadata.contains("schema") || metadata.at("schema") != kSchema || !metadata.contains("manifest")) {
    throw DataError("not a file of statistics", path_, "give files that oscar fit --save-stats wrote");
  }
  const Json manifest = parse_json(metadata.at("manifest"), path_);
  validate_json(manifest, kSchema, path_);
  manifest_ = statistics_from_json(manifest, path_);
  int last = -1;
  std::size_t listed = 0;
  for (const LayerStatistics& layer : manifest_.layers) {
    if (layer.layer_id <= last) throw again("layers are not in ascending order");
    last = layer.layer_id;
    for (const char* const part : kParts) listed += has(prefix_of(layer.layer_id) + part) ? 1U : 0U;
    for (std::size_t i = 0; has(prefix_of(layer.layer_id) + sample_of(i) + ".q"); ++i) {
      for (const char* const part : kSampleParts) {
        listed += has(prefix_of(layer.layer_id) + sample_of(i) + part) ? 1U : 0U;
      }
    }
    const std::vector<std::size_t>& places = layer.first_data;
    if (!std::ranges::is_sorted(places, std::ranges::less_equal{})) {
      throw again("the manifest names data twice or out of order");
    }
    if (!places.empty() && places.back() >= manifest_.data.size()) {
      throw again("the manifest names data that it does not list");
    }
  }
  if (listed == file_->tensors().size()) return;
  throw again("there are sums of layers, or under names, that the manifest does not list");
}

LayerStatistics StatisticsFile::read(const LayerStatistics& layer) const {
  LayerStatistics out = layer;
  if (server_) {
    add_sums(*server_, out);
    require_sums_of_rows(out, manifest_, path_);
    return out;
  }
  const std::string prefix = prefix_of(layer.layer_id);
  for (const Moment moment : kSums) {
    const std::string name(name_of(moment));
    const bool of_keys = moment == Moment::kQqt || moment == Moment::kKtk;
    if (has(prefix + name + ".sums")) {
      out.first.sums[moment] = moments(prefix + name, of_keys ? layer.key_dim : layer.value_dim);
    }
  }
  if (has(prefix + "sst.sums")) out.sst = moments(prefix + "sst", layer.value_dim);
  if (has(prefix + "cost.key")) {
    out.cost = ErrorCost{stack(prefix + "cost.key", layer.key_dim), stack(prefix + "cost.value", layer.value_dim)};
  }
  if (has(prefix + "fisher.query")) out.first.fisher = fisher(prefix + "fisher", out);
  const int heads = heads_of(out, path_ + ", " + prefix.substr(0, prefix.size() - 1));
  if (has(prefix + "keys.sums")) {
    const auto size = static_cast<std::size_t>(heads) * static_cast<std::size_t>(layer.key_dim);
    out.first.keys = KeySums{vector(prefix + "keys.sums", size), vector(prefix + "keys.total", 1).front()};
  }
  if (has(prefix + "key.rows")) {
    out.key_rows = rows(prefix + "key.rows", heads, layer.key_dim);
    out.value_rows = rows(prefix + "value.rows", heads, layer.value_dim);
    if (size_of(layer).rows * layer.value_dim != std::ssize(out.value_rows.front())) {
      refuse(prefix + "value.rows", "has another number of rows than key.rows");
    }
  }
  if (layer.rotary) {
    if (layer.rotary->dim() != layer.key_dim) refuse(prefix + "rotary", "is of heads of another size");
    out.keys_before_rope = rows(prefix + "before_rope.rows", heads, layer.key_dim);
  }
  out.sample = clip_sample(prefix, heads, layer);
  require_sums_of_rows(out, manifest_, path_);
  return out;
}

std::vector<double> StatisticsFile::vector(const std::string& name, std::size_t size) const {
  const TensorRef& tensor = file_->at(name);
  if (tensor.dtype != DType::kF64 || static_cast<std::size_t>(num_elements(tensor.shape)) != size) {
    throw DataError("\"" + name + "\" has shape " + shape_text(tensor.shape) + " of " +
                        std::string(name_of(tensor.dtype)) + ", not " + std::to_string(size) + " float64 values",
                    path_, kTakeAgain);
  }
  return file_->load(name).to_doubles();  // wherever the file is
}

MatrixStack StatisticsFile::stack(const std::string& name, int dim) const {
  const TensorRef& tensor = file_->at(name);
  if (tensor.shape.size() != 3 || tensor.shape[1] != dim || tensor.shape[2] != dim || tensor.shape[0] < 1) {
    throw DataError("\"" + name + "\" has shape " + shape_text(tensor.shape) + ", not one of " + std::to_string(dim) +
                        " x " + std::to_string(dim) + " matrices",
                    path_, kTakeAgain);
  }
  MatrixStack out;
  out.count = static_cast<int>(tensor.shape[0]), out.dim = dim;
  out.data = vector(name, static_cast<std::size_t>(num_elements(tensor.shape)));
  return out;
}

MomentSums StatisticsFile::moments(const std::string& name, int dim) const {
  MomentSums out{stack(name + ".sums", dim), {}};
  out.total = vector(name + ".total", static_cast<std::size_t>(out.sums.count));
  return out;
}

FisherSums StatisticsFile::fisher(const std::string& name, const LayerStatistics& layer) const {
  FisherSums out;
  out.query = stack(name + ".query", layer.key_dim), out.key = stack(name + ".key", layer.key_dim);
  if (has(name + ".value")) out.value = stack(name + ".value", layer.value_dim);
  const auto heads = static_cast<std::size_t>(out.key.count);
  out.key_sum = vector(name + ".key_sum", heads * static_cast<std::size_t>(layer.key_dim));
  out.weight = vector(name + ".weight", heads);
  if (layer.rotary) {
    if (!layer.cost) out.base_query = stack(name + ".base_query", layer.key_dim);
    if (layer.cost && has(name + ".base_query")) refuse(name + ".base_query", "is of no use beside what errors cost");
    out.base_key = stack(name + ".base_key", layer.key_dim);
    out.base_key_sum = vector(name + ".base_key_sum", heads * static_cast<std::size_t>(layer.key_dim));
  }
  return out;
}

void StatisticsFile::refuse(const std::string& name, const std::string& what) const {
  throw DataError("\"" + name + "\" " + what, path_, kTakeAgain);
}

std::vector<std::vector<float>> StatisticsFile::rows(const std::string& name, int heads, int dim) const {
  const TensorRef& tensor = file_->at(name);
  const std::vector<std::int64_t>& shape = tensor.shape;
  if (tensor.dtype != DType::kF32 || shape.size() != 3 || shape[0] != heads || shape[1] < 1 || shape[2] != dim) {
    refuse(name,
           "has shape " + shape_text(shape) + " of " + std::string(name_of(tensor.dtype)) + ", which are no rows");
  }
  const Tensor all = file_->load(name);
  const std::span<const float> values = all.values<float>();
  if (!std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) refuse(name, "is not finite");
  std::vector<std::vector<float>> out;
  const auto size = static_cast<std::size_t>(shape[1] * dim);
  for (std::size_t first = 0; first < values.size(); first += size) {
    const auto own = values.subspan(first, size);
    out.emplace_back(own.begin(), own.end());
  }
  return out;
}

std::vector<SampledSequence> StatisticsFile::clip_sample(const std::string& prefix, int heads,
                                                         const LayerStatistics& layer) const {
  std::vector<SampledSequence> sample;
  for (std::size_t i = 0; has(prefix + sample_of(i) + ".q"); ++i) {
    const std::string own = prefix + sample_of(i);
    const auto load = [&](const char* part, int dim) {
      const TensorRef& tensor = file_->at(own + part);
      const bool floats = tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16;
      if (!floats || tensor.shape.size() != 3 || tensor.shape[0] < 1 || tensor.shape[1] < 1 || tensor.shape[2] != dim) {
        refuse(own + part, "has shape " + shape_text(tensor.shape) + ", which are no rows of a sequence");
      }
      Tensor rows = file_->load(own + part);
      const std::vector<double> values = rows.to_doubles();
      if (!std::ranges::all_of(values, [](double x) { return std::isfinite(x); })) {
        refuse(own + part, "is not finite");
      }
      return rows;
    };
    if (file_->at(own + ".positions").dtype != DType::kI64) refuse(own + ".positions", "are no positions");
    SampledSequence& each =
        sample.emplace_back(SampledSequence{load(".q", layer.key_dim), load(".k", layer.key_dim),
                                            load(".v", layer.value_dim), file_->load(own + ".positions").to_int64()});
    const std::vector<std::int64_t>& positions = each.query_positions;
    const std::int64_t tokens = each.k.shape[0];
    const bool fits = each.k.shape[1] == heads && each.v.shape[1] == heads && each.v.shape[0] == tokens &&
                      each.q.shape[1] % heads == 0 && each.q.shape[0] == std::ssize(positions) &&
                      std::ranges::is_sorted(positions, std::ranges::less_equal{}) &&
                      positions.front() >= std::int64_t{manifest_.windows.sink} + manifest_.windows.recent &&
                      positions.back() < tokens;
    if (!fits) refuse(own, "is no sample of a sequence: its rows, heads and positions do not fit together");
  }
  return sample;
}

StatisticsFile::Size StatisticsFile::size_of(const LayerStatistics& layer) const {
  if (server_) return {.tokens = static_cast<double>(server_->data.tokens)};
  const std::string prefix = prefix_of(layer.layer_id);
  Size size;
  if (has(prefix + "key.rows") && file_->at(prefix + "key.rows").shape.size() == 3) {
    size.rows = file_->at(prefix + "key.rows").shape[1];
  }
  for (const char* const name : {"vtv.total", "ktk.total", "qqt.total"}) {
    if (!has(prefix + name)) continue;
    const std::vector<double> total = file_->load(prefix + name).to_doubles();
    if (!total.empty()) size.tokens = total.front();
    return size;
  }
  return size;
}

}  // namespace oscar
