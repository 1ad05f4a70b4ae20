// SPDX-License-Identifier: MIT
#include "moments/statistics_file.hpp"

#include <algorithm>
#include <utility>

#include "base/errors.hpp"
#include "base/version.hpp"

namespace oscar {
namespace {

constexpr const char* kSchema = "oscar.statistics.v1";
constexpr Moment kSums[] = {Moment::kQqt, Moment::kKtk, Moment::kVtv};
constexpr const char* kParts[] = {"qqt.sums",     "qqt.total",  "ktk.sums",       "ktk.total",    "vtv.sums",
                                  "vtv.total",    "sst.sums",   "sst.total",      "keys.sums",    "keys.total",
                                  "fisher.query", "fisher.key", "fisher.key_sum", "fisher.weight"};

std::string prefix_of(int layer_id) { return "layer_" + std::to_string(layer_id) + "."; }

Json to_json(const Statistics& statistics) {
  Json layers = Json::array(), data = Json::array();
  for (const LayerStatistics& layer : statistics.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"key_dim", layer.key_dim},
                      {"value_dim", layer.value_dim},
                      {"first_data", layer.first_data},
                      {"sst_data", layer.sst_data}});
  }
  for (const CalibrationData& each : statistics.data) data.push_back(oscar::to_json(each));
  Json json{{"schema", kSchema},
            {"oscar_version", kVersion},
            {"model", oscar::to_json(statistics.model)},
            {"data", std::move(data)},
            {"windows", {{"sink", statistics.windows.sink}, {"recent", statistics.windows.recent}}},
            {"query_moments_sha256", statistics.query_moments_sha256},
            {"layers", std::move(layers)}};
  const HeadRange& heads = statistics.heads;
  if (!heads.whole()) json["kv_heads"] = {{"first", heads.first}, {"count", heads.count}, {"total", heads.total}};
  if (statistics.sample) json["sample"] = {{"tokens", statistics.sample->tokens}, {"seed", statistics.sample->seed}};
  if (!statistics.expected_layers.empty()) json["expected_layers"] = statistics.expected_layers;
  return json;
}

Statistics statistics_from_json(const Json& json) {
  Statistics out;
  out.model = model_identity_from_json(json["model"]);
  for (const Json& each : json["data"]) out.data.push_back(calibration_data_from_json(each));
  out.windows = {json["windows"]["sink"].get<int>(), json["windows"]["recent"].get<int>()};
  out.query_moments_sha256 = json["query_moments_sha256"].get<std::string>();
  for (const Json& each : json["layers"]) {
    LayerStatistics& layer = out.layers.emplace_back();
    layer.layer_id = each["layer_id"].get<int>();
    layer.key_dim = each["key_dim"].get<int>(), layer.value_dim = each["value_dim"].get<int>();
    layer.first_data = each["first_data"].get<std::vector<std::size_t>>();
    layer.sst_data = each["sst_data"].get<std::vector<std::size_t>>();
  }
  if (json.contains("kv_heads")) {
    const Json& heads = json["kv_heads"];
    out.heads = {heads["first"].get<int>(), heads["count"].get<int>(), heads["total"].get<int>()};
  }
  if (json.contains("sample")) {
    out.sample = RowSample{json["sample"]["tokens"].get<std::int64_t>(), json["sample"]["seed"].get<std::uint64_t>()};
  }
  out.expected_layers = json.value("expected_layers", std::vector<int>{});
  return out;
}

using Tensors = std::vector<std::pair<std::string, Tensor>>;

Tensor tensor_of(const MatrixStack& stack) {
  return Tensor::from({stack.count, stack.dim, stack.dim}, std::span<const double>(stack.data));
}
Tensor tensor_of(const std::vector<double>& values) {
  return Tensor::from({static_cast<std::int64_t>(values.size())}, std::span<const double>(values));
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
  if (!layer.first.fisher) return;
  const FisherSums& fisher = *layer.first.fisher;
  tensors.emplace_back(prefix + "fisher.query", tensor_of(fisher.query));
  tensors.emplace_back(prefix + "fisher.key", tensor_of(fisher.key));
  tensors.emplace_back(prefix + "fisher.key_sum", tensor_of(fisher.key_sum));
  tensors.emplace_back(prefix + "fisher.weight", tensor_of(fisher.weight));
}

/// KV heads, of which every sum must have as many.
int heads_of(const LayerStatistics& layer, const std::string& where) {
  std::vector<int> counts;
  for (const auto& [moment, sums] : layer.first.sums) counts.push_back(sums.sums.count);
  if (layer.sst) counts.push_back(layer.sst->sums.count);
  if (layer.first.fisher) {
    counts.push_back(layer.first.fisher->query.count);
    counts.push_back(layer.first.fisher->key.count);
  }
  if (counts.empty()) throw DataError("no sums", where, "take the statistics again");
  if (std::ranges::count(counts, counts.front()) == std::ssize(counts)) return counts.front();
  throw DataError("sums of different numbers of heads", where, "take the statistics again");
}

}  // namespace

void write_statistics(const std::filesystem::path& path, const Statistics& statistics) {
  Tensors tensors;
  for (const LayerStatistics& layer : statistics.layers) add_layer(layer, tensors);
  write_safetensors(path, tensors, {{"schema", kSchema}, {"manifest", to_json(statistics).dump()}}, Checksums::kYes);
}

StatisticsFile::StatisticsFile(const std::filesystem::path& path) : path_(path.string()), file_(path) {
  const auto again = [&](const char* what) { return DataError(what, path_, "take the statistics again"); };
  const auto& metadata = file_.metadata();
  if (!metadata.contains("schema") || metadata.at("schema") != kSchema || !metadata.contains("manifest")) {
    throw DataError("not a file of statistics", path_, "give files that oscar fit --save-stats wrote");
  }
  const Json manifest = parse_json(metadata.at("manifest"), path_);
  validate_json(manifest, kSchema, path_);
  manifest_ = statistics_from_json(manifest);
  int last = -1;
  std::size_t listed = 0;
  for (const LayerStatistics& layer : manifest_.layers) {
    if (layer.layer_id <= last) throw again("layers are not in ascending order");
    last = layer.layer_id;
    for (const char* const part : kParts) listed += has(prefix_of(layer.layer_id) + part) ? 1U : 0U;
    for (const auto* places : {&layer.first_data, &layer.sst_data}) {
      if (!std::ranges::is_sorted(*places, std::ranges::less_equal{})) {
        throw again("the manifest names data twice or out of order");
      }
      if (places->empty() || places->back() < manifest_.data.size()) continue;
      throw again("the manifest names data that it does not list");
    }
  }
  if (listed == file_.tensors().size()) return;
  throw again("there are sums of layers, or under names, that the manifest does not list");
}

LayerStatistics StatisticsFile::read(const LayerStatistics& layer) const {
  LayerStatistics out = layer;
  const std::string prefix = prefix_of(layer.layer_id);
  for (const Moment moment : kSums) {
    const std::string name(name_of(moment));
    const bool of_keys = moment == Moment::kQqt || moment == Moment::kKtk;
    if (has(prefix + name + ".sums")) {
      out.first.sums[moment] = moments(prefix + name, of_keys ? layer.key_dim : layer.value_dim);
    }
  }
  if (has(prefix + "sst.sums")) out.sst = moments(prefix + "sst", layer.value_dim);
  if (has(prefix + "fisher.query")) out.first.fisher = fisher(prefix + "fisher", layer.key_dim);
  const int heads = heads_of(out, path_ + ", " + prefix.substr(0, prefix.size() - 1));
  if (has(prefix + "keys.sums")) {
    const auto size = static_cast<std::size_t>(heads) * static_cast<std::size_t>(layer.key_dim);
    out.first.keys = KeySums{vector(prefix + "keys.sums", size), vector(prefix + "keys.total", 1).front()};
  }
  require_sums_of_rows(out, manifest_, path_);
  return out;
}

std::vector<double> StatisticsFile::vector(const std::string& name, std::size_t size) const {
  const TensorRef& tensor = file_.at(name);
  if (tensor.dtype != DType::kF64 || static_cast<std::size_t>(num_elements(tensor.shape)) != size) {
    throw DataError("\"" + name + "\" has shape " + shape_text(tensor.shape) + " of " +
                        std::string(name_of(tensor.dtype)) + ", not " + std::to_string(size) + " float64 values",
                    path_, "take the statistics again");
  }
  return file_.load(name).to_doubles();  // wherever the file is
}

MatrixStack StatisticsFile::stack(const std::string& name, int dim) const {
  const TensorRef& tensor = file_.at(name);
  if (tensor.shape.size() != 3 || tensor.shape[1] != dim || tensor.shape[2] != dim || tensor.shape[0] < 1) {
    throw DataError("\"" + name + "\" has shape " + shape_text(tensor.shape) + ", not one of " + std::to_string(dim) +
                        " x " + std::to_string(dim) + " matrices",
                    path_, "take the statistics again");
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

FisherSums StatisticsFile::fisher(const std::string& name, int dim) const {
  FisherSums out;
  out.query = stack(name + ".query", dim), out.key = stack(name + ".key", dim);
  const auto heads = static_cast<std::size_t>(out.key.count);
  out.key_sum = vector(name + ".key_sum", heads * static_cast<std::size_t>(dim));
  out.weight = vector(name + ".weight", heads);
  return out;
}

}  // namespace oscar
