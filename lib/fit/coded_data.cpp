// SPDX-License-Identifier: MIT
#include "fit/coded_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/errors.hpp"
#include "base/version.hpp"
#include "fit/kept_layers.hpp"
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

void require_alike(const CodedDataPart& a, const CodedDataPart& b) {
  const auto require = [&](bool alike, const std::string& what, const char* advice) {
    if (!alike) throw DataError(what, a.name + " and " + b.name, advice);
  };
  const CodedData &x = a.data, &y = b.data;
  require(x.model == y.model, "statistics of different models, or revisions of one",
          "merge statistics of one model only");
  require(x.windows == y.windows, "statistics with different windows", "take them with the same --sink and --recent");
  Json how = x.recipe, other = y.recipe;
  for (Json* each : {&how, &other}) each->erase("damage_tokens");
  require(how == other,
          "statistics that were taken in other ways: " + PartialFolder::differences(how, other) + " differ",
          "take all parts with the same options, and all of a model or all of dumps");
  for (const CalibrationData& each : x.data) {
    require(std::ranges::find(y.data, each) == y.data.end(), "the same data twice", "give each part of the data once");
  }
  const auto same_layer = [](const CodedLayerData& one, const CodedLayerData& two) {
    return one.sums.layer_id == two.sums.layer_id && one.sums.key_dim == two.sums.key_dim &&
           one.sums.value_dim == two.sums.value_dim && one.key_rows.size() == two.key_rows.size() &&
           one.centred == two.centred && one.cost.has_value() == two.cost.has_value() &&
           one.damage.has_value() == two.damage.has_value();
  };
  require(std::ranges::equal(x.layers, y.layers, same_layer), "statistics of different layers, or of other heads",
          "take every part of the same layers");
}

/// One layer of every part, in order.
using LayerOfParts = std::vector<CodedLayerData*>;

double tokens_of_all(const LayerOfParts& parts) {
  double tokens = 0;
  for (const CodedLayerData* part : parts) tokens += static_cast<double>(tokens_of(*part));
  return tokens;
}

std::int64_t rows_of(const CodedLayerData& part) {
  return std::ssize(part.key_rows.front()) / std::int64_t{part.sums.key_dim};
}

/// `count` of the rows of each head, spread evenly.
void thin(std::vector<std::vector<float>>& heads, std::int64_t rows, std::int64_t count) {
  for (std::vector<float>& own : heads) {
    const auto dim = std::ssize(own) / rows;
    std::vector<float> kept;
    kept.reserve(static_cast<std::size_t>(count * dim));
    for (std::int64_t i = 0; i < count; ++i) {
      const auto row = own.begin() + (2 * i + 1) * rows / (2 * count) * dim;
      kept.insert(kept.end(), row, row + dim);
    }
    own = std::move(kept);
  }
}

void append(const std::vector<std::vector<float>>& more, std::vector<std::vector<float>>& heads) {
  for (std::size_t head = 0; head < heads.size(); ++head) {
    heads[head].insert(heads[head].end(), more[head].begin(), more[head].end());
  }
}

/// Leaves of each part's rows as many as its tokens deserve: about `wanted` in all, or what the part with the fewest
/// rows a token allows.
void thin_rows(const LayerOfParts& parts, double wanted) {
  double density = wanted / tokens_of_all(parts);
  for (const CodedLayerData* part : parts) {
    density = std::min(density, static_cast<double>(rows_of(*part)) / static_cast<double>(tokens_of(*part)));
  }
  for (CodedLayerData* part : parts) {
    const std::int64_t rows = rows_of(*part);
    const auto share = static_cast<std::int64_t>(std::llround(density * static_cast<double>(tokens_of(*part))));
    const std::int64_t count = std::clamp<std::int64_t>(share, 1, rows);
    thin(part->key_rows, rows, count);
    thin(part->value_rows, rows, count);
  }
}

void scale_by(double share, CodedLayerData& layer) {
  if (layer.cost) {
    for (MatrixStack* cost : {&layer.cost->key, &layer.cost->value}) {
      for (double& entry : cost->data) entry *= share;
    }
  }
  if (layer.damage) layer.damage = {share * layer.damage->key, share * layer.damage->value};
}

void add_to(std::vector<double>& sum, const std::vector<double>& more) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

/// To the first part's.
void merge_layer(const LayerOfParts& parts, double wanted_rows) {
  const double all = tokens_of_all(parts);
  thin_rows(parts, wanted_rows);
  for (CodedLayerData* part : parts) scale_by(static_cast<double>(tokens_of(*part)) / all, *part);
  CodedLayerData& sum = *parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const CodedLayerData& more = *parts[i];
    sum.sums.first.merge(more.sums.first);
    append(more.key_rows, sum.key_rows);
    append(more.value_rows, sum.value_rows);
    if (sum.cost) add_to(sum.cost->key.data, more.cost->key.data), add_to(sum.cost->value.data, more.cost->value.data);
    if (sum.damage) sum.damage = {sum.damage->key + more.damage->key, sum.damage->value + more.damage->value};
  }
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
  std::vector<CodedDataPart> parts;
  for (const std::filesystem::path& path : paths) parts.push_back({path.string(), read_part(path)});
  return merge_coded_data(std::move(parts));
}

bool is_coded_data(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  return file.metadata().contains("schema") && file.metadata().at("schema") == kCodedDataSchema;
}

CodedData merge_coded_data(std::vector<CodedDataPart> parts) {
  const auto order = [](const CodedDataPart& part) {
    std::string text;
    for (const CalibrationData& each : part.data.data) text += each.data_sha256;
    return text;
  };
  std::ranges::stable_sort(parts, {}, order);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) require_alike(parts[j], parts[i]);
  }
  CodedData& sum = parts.front().data;
  if (parts.size() == 1) return std::move(sum);
  for (std::size_t layer = 0; layer < sum.layers.size(); ++layer) {
    LayerOfParts same;
    for (CodedDataPart& part : parts) same.push_back(&part.data.layers[layer]);
    merge_layer(same, sum.recipe["sample_rows"]);
  }
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const CodedData& more = parts[i].data;
    sum.data.insert(sum.data.end(), more.data.begin(), more.data.end());
    sum.recipe["damage_tokens"] =
        sum.recipe["damage_tokens"].get<std::int64_t>() + more.recipe["damage_tokens"].get<std::int64_t>();
  }
  for (CodedLayerData& layer : sum.layers) {
    layer.sums.first_data.resize(sum.data.size());
    std::iota(layer.sums.first_data.begin(), layer.sums.first_data.end(), std::size_t{0});
  }
  return std::move(sum);
}

Json describe_coded_data(const QkvSource& source, Windows windows, const Json& recipe) {
  return {{"oscar_version", kVersion},
          {"model", to_json(source.model())},
          {"calibration", to_json(source.calibration())},
          {"layers", source.layer_ids()},
          {"recipe", recipe},
          {"windows", {windows.sink, windows.recent}}};
}

KeptLayers<CodedLayerData> kept_coded(const PartialFolder* folder, CodedData about) {
  return {folder,
          [about = std::move(about)](const std::filesystem::path& path, const CodedLayerData& layer) {
            write_coded_data(path, {about.model, about.data, about.windows, {layer}, about.recipe});
          },
          [](const std::filesystem::path& path, int layer_id) {
            CodedData data = read_coded_data({path});
            if (data.layers.size() == 1 && data.layers.front().sums.layer_id == layer_id) {
              return std::move(data.layers.front());
            }
            throw DataError("this is not layer " + std::to_string(layer_id), path.string(), "remove it");
          }};
}

std::map<int, ErrorCost> kept_costs(const PartialFolder& folder, const std::function<std::map<int, ErrorCost>()>& ask) {
  const std::filesystem::path path = folder.path() / "layer_costs.safetensors";  // a name that PartialFolder knows
  std::map<int, ErrorCost> costs;
  if (std::filesystem::exists(path)) {
    const SafetensorsFile file(path);
    for (const auto& [name, tensor] : file.tensors()) {
      const std::size_t dot = name.find('.');
      ErrorCost& cost = costs[std::stoi(name.substr(0, dot))];
      (name.substr(dot) == ".key" ? cost.key : cost.value) = MatrixStack::from(file.load(name), name);
    }
    return costs;
  }
  costs = ask();
  if (costs.empty()) return costs;  // nobody knows them
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& [layer, cost] : costs) {
    for (const auto& [side, stack] : {std::pair{".key", &cost.key}, {".value", &cost.value}}) {
      tensors.emplace_back(std::to_string(layer) + side,
                           Tensor::from({stack->count, stack->dim, stack->dim}, stack->data));
    }
  }
  write_safetensors(path, tensors, {}, Checksums::kYes);
  return costs;
}

}  // namespace oscar
