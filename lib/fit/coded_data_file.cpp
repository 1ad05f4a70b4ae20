// SPDX-License-Identifier: MIT
#include "fit/coded_data_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "base/version.hpp"
#include "fit/coded_data_merge.hpp"
#include "moments/statistics_file.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

using CodedTensors = std::vector<std::pair<std::string, Tensor>>;
using TensorShape = std::vector<std::int64_t>;

constexpr const char* kTakeSumsAgain = "take the statistics again";

std::string coded_prefix(int layer_id) { return fmt::format("layer_{}.", layer_id); }

Json coded_data_manifest(const CodedData& data) {
  Json layers = Json::array(), parts = Json::array();
  for (const CodedLayerData& layer : data.layers) {
    layers.push_back({{"layer_id", layer.sums.layer_id}, {"centred", layer.centred}});
    if (layer.damage) layers.back()["damage"] = {{"key", layer.damage->key}, {"value", layer.damage->value}};
  }
  for (const CalibrationData& part : data.data) parts.push_back(to_json(part));
  return {{"schema", kCodedDataSchema},
          {"oscar_version", kVersion},
          {"model", to_json(data.model)},
          {"data", std::move(parts)},
          {"windows", {{"sink", data.windows.sink}, {"recent", data.windows.recent}}},
          {"recipe", data.recipe},
          {"layers", std::move(layers)}};
}

/// Calls visit(name, numbers, shape) for all that adds up.
template <class Layer, class Visit>
void visit_numbers(Layer& layer, const Visit& visit) {
  const auto matrices = [&](const char* name, auto& stack) {
    visit(name, stack.data, TensorShape{stack.count, stack.dim, stack.dim});
  };
  auto& fisher = layer.sums.first.fisher.value();
  const std::int64_t heads = fisher.key.count, dim = fisher.key.dim;
  for (auto& [moment, moments] : layer.sums.first.sums) {
    const std::string name(name_of(moment));
    matrices((name + ".sums").c_str(), moments.sums);
    visit(name + ".total", moments.total, TensorShape{heads});
  }
  matrices("fisher.query", fisher.query), matrices("fisher.key", fisher.key), matrices("fisher.value", fisher.value);
  visit("fisher.key_sum", fisher.key_sum, TensorShape{heads, dim});
  visit("fisher.weight", fisher.weight, TensorShape{heads});
  if (layer.cost) matrices("cost.key", layer.cost->key), matrices("cost.value", layer.cost->value);
}

void add_coded_layer(const CodedLayerData& layer, CodedTensors& tensors) {
  const std::string prefix = coded_prefix(layer.sums.layer_id);
  visit_numbers(layer, [&](const std::string& name, const std::vector<double>& values, const TensorShape& shape) {
    tensors.emplace_back(prefix + name, Tensor::from(shape, std::span<const double>(values)));
  });
  const auto add_rows = [&](const char* name, const std::vector<std::vector<float>>& heads, std::int64_t dim) {
    std::vector<float> rows;
    for (const std::vector<float>& own : heads) rows.insert(rows.end(), own.begin(), own.end());
    tensors.emplace_back(prefix + name, Tensor::from({std::ssize(heads), std::ssize(heads.front()) / dim, dim},
                                                     std::span<const float>(rows)));
  };
  add_rows("key.rows", layer.key_rows, layer.sums.key_dim);
  add_rows("value.rows", layer.value_rows, layer.sums.value_dim);
}

/// Reads one layer.
class LayerReader {
 public:
  LayerReader(const SafetensorsFile& file, int layer_id, std::string where)
      : file_(file), prefix_(coded_prefix(layer_id)), where_(std::move(where)) {
    layer_.sums.layer_id = layer_id;
  }

  [[nodiscard]] CodedLayerData read(const Statistics& about) {
    const int key_dim = matrix_size("fisher.key"), value_dim = matrix_size("fisher.value");
    layer_.sums.key_dim = key_dim, layer_.sums.value_dim = value_dim;
    layer_.sums.first_data.resize(about.data.size());
    std::iota(layer_.sums.first_data.begin(), layer_.sums.first_data.end(), std::size_t{0});
    const MatrixStack keys(heads_, key_dim), values(heads_, value_dim);
    const std::vector<double> totals(static_cast<std::size_t>(heads_));
    AdditiveMoments& sums = layer_.sums.first;
    sums.sums[Moment::kQqt] = {keys, totals}, sums.sums[Moment::kVtv] = {values, totals};
    sums.fisher = FisherSums(heads_, key_dim);
    sums.fisher->value = values;
    if (file_.tensors().contains(prefix_ + "cost.key")) layer_.cost = ErrorCost{keys, values};
    visit_numbers(layer_, [&](const std::string& name, std::vector<double>& numbers, const TensorShape& shape) {
      numbers = finite(name, shape, DType::kF64);
    });
    layer_.key_rows = rows("key.rows", key_dim), layer_.value_rows = rows("value.rows", value_dim);
    if (layer_.key_rows.front().size() / static_cast<std::size_t>(key_dim) !=
        layer_.value_rows.front().size() / static_cast<std::size_t>(value_dim)) {
      refuse("value.rows", "has another number of rows than key.rows");
    }
    require_sums_of_rows(layer_.sums, about, where_);
    require_semidefinite(layer_.sums, false, where_);
    return std::move(layer_);
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    throw DataError("the tensor " + prefix_ + name + " " + what, where_, kTakeSumsAgain);
  }

  /// Of a stack with one matrix for each head.
  [[nodiscard]] int matrix_size(const std::string& name) {
    const TensorShape& shape = file_.at(prefix_ + name).shape;
    const bool fits = shape.size() == 3 && shape[0] > 0 && shape[1] > 0 && shape[1] % kLevelBlock == 0 &&
                      shape[1] == shape[2] && (heads_ == 0 || shape[0] == heads_);
    if (!fits) refuse(name, "has the shape " + shape_text(shape));
    heads_ = static_cast<int>(shape[0]);
    return static_cast<int>(shape[1]);
  }

  [[nodiscard]] std::vector<double> finite(const std::string& name, const TensorShape& shape, DType dtype) const {
    const TensorRef& tensor = file_.at(prefix_ + name);
    if (tensor.shape != shape || tensor.dtype != dtype) {
      refuse(name, "has the shape " + shape_text(tensor.shape) + " or a type that does not fit");
    }
    std::vector<double> values = file_.load(prefix_ + name).to_doubles();
    if (!std::ranges::all_of(values, [](double x) { return std::isfinite(x); })) refuse(name, "is not finite");
    return values;
  }

  [[nodiscard]] std::vector<std::vector<float>> rows(const std::string& name, std::int64_t dim) const {
    const TensorShape& shape = file_.at(prefix_ + name).shape;
    if (shape.size() != 3 || shape[0] != heads_ || shape[1] < 1 || shape[2] != dim) {
      refuse(name, "has the shape " + shape_text(shape));
    }
    const std::vector<double> all = finite(name, shape, DType::kF32);
    std::vector<std::vector<float>> heads;
    const auto size = static_cast<std::ptrdiff_t>(shape[1] * dim);
    for (auto own = all.begin(); own != all.end(); own += size) heads.emplace_back(own, own + size);
    return heads;
  }

  const SafetensorsFile& file_;
  std::string prefix_, where_;
  CodedLayerData layer_;
  int heads_ = 0;
};

CodedData read_part(const std::filesystem::path& path) {
  const std::string where = path.string();
  const SafetensorsFile file(path);
  const auto& metadata = file.metadata();
  if (!metadata.contains("schema") || metadata.at("schema") != kCodedDataSchema || !metadata.contains("manifest")) {
    throw DataError("not a file of statistics for the coded cache", where,
                    "give files that oscar fit --recipe coded --save-stats wrote");
  }
  const Json manifest = parse_json(metadata.at("manifest"), where);
  validate_json(manifest, kCodedDataSchema, where);
  CodedData data;
  data.model = model_identity_from_json(manifest["model"]);
  for (const Json& part : manifest["data"]) data.data.push_back(calibration_data_from_json(part));
  data.windows = {manifest["windows"]["sink"], manifest["windows"]["recent"]};
  data.recipe = manifest["recipe"];
  const Statistics about{.model = data.model, .data = data.data, .windows = data.windows};
  for (const Json& each : manifest["layers"]) {
    const int id = each["layer_id"];
    if (!data.layers.empty() && id <= data.layers.back().sums.layer_id) {
      throw DataError("layers are not in ascending order", where, kTakeSumsAgain);
    }
    CodedLayerData& layer = data.layers.emplace_back(LayerReader(file, id, where).read(about));
    layer.centred = each["centred"];
    if (each.contains("damage")) layer.damage = CodedDamage{each["damage"]["key"], each["damage"]["value"]};
  }
  return data;
}

}  // namespace

void write_coded_data(const std::filesystem::path& path, const CodedData& data) {
  CodedTensors tensors;
  for (const CodedLayerData& layer : data.layers) add_coded_layer(layer, tensors);
  const Json manifest = coded_data_manifest(data);
  validate_json(manifest, kCodedDataSchema, path.string());
  write_safetensors(path, tensors, {{"schema", kCodedDataSchema}, {"manifest", manifest.dump()}}, Checksums::kYes);
}

CodedData read_coded_data(const std::vector<std::filesystem::path>& paths) {
  std::vector<CodedPart> parts;
  for (const std::filesystem::path& path : paths) parts.push_back({path.string(), read_part(path)});
  return merge_coded_data(std::move(parts));
}

bool is_coded_data(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  return file.metadata().contains("schema") && file.metadata().at("schema") == kCodedDataSchema;
}

}  // namespace oscar
