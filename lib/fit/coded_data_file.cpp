// SPDX-License-Identifier: MIT
#include "fit/coded_data_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/version.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

using CodedTensors = std::vector<std::pair<std::string, Tensor>>;

constexpr const char* kTakeSumsAgain = "take the statistics again";

std::string coded_prefix(int layer_id, const char* side) { return fmt::format("layers.{}.{}.", layer_id, side); }

Json coded_data_manifest(const CodedData& data) {
  Json layers = Json::array();
  for (std::size_t i = 0; i < data.layers.size(); ++i) {
    layers.push_back({{"layer_id", data.layers[i].layer_id},
                      {"key_weight", data.weights[i].key},
                      {"value_weight", data.weights[i].value}});
  }
  return {{"schema", kCodedDataSchema},
          {"oscar_version", kVersion},
          {"model", to_json(data.model)},
          {"calibration", to_json(data.calibration)},
          {"windows", {{"sink", data.windows.sink}, {"recent", data.windows.recent}}},
          {"recipe", data.recipe},
          {"layers", std::move(layers)}};
}

void add_coded_sample(const std::string& prefix, const CodedSample& sample, CodedTensors& tensors) {
  const Transform& transform = sample.basis.transform;
  const std::int64_t heads = transform.rotation.count, dim = transform.rotation.dim;
  const auto add = [&](const char* name, std::vector<std::int64_t> shape, const std::vector<double>& values) {
    tensors.emplace_back(prefix + name, Tensor::from(std::move(shape), std::span<const double>(values)));
  };
  add("write", {heads, dim, dim}, transform.rotation.data);
  add("read", {heads, dim, dim}, transform.read_rotation.data);
  if (!transform.mean.empty()) add("mean", {heads, dim}, transform.mean);
  add("lambda", {heads, dim}, sample.basis.lambda);
  std::vector<float> rows;
  for (const std::vector<float>& own : sample.rows) rows.insert(rows.end(), own.begin(), own.end());
  const auto count = static_cast<std::int64_t>(rows.size()) / (heads * dim);
  tensors.emplace_back(prefix + "rows", Tensor::from({heads, count, dim}, std::span<const float>(rows)));
}

/// Reads one side of a layer.
class SampleReader {
 public:
  SampleReader(const SafetensorsFile& file, std::string prefix, const std::string& where)
      : file_(file), prefix_(std::move(prefix)), where_(where) {}

  [[nodiscard]] CodedSample read(bool has_mean) {
    const std::vector<std::int64_t>& shape = file_.at(prefix_ + "write").shape;
    if (shape.size() != 3 || shape[0] < 1 || shape[1] < 1 || shape[1] % kLevelBlock != 0 || shape[1] != shape[2]) {
      refuse("write", "has the shape " + shape_text(shape));
    }
    heads_ = shape[0], dim_ = shape[1];
    CodedSample sample;
    sample.basis.transform.rotation = matrices("write"), sample.basis.transform.read_rotation = matrices("read");
    if (has_mean && file_.tensors().contains(prefix_ + "mean")) {
      sample.basis.transform.mean = finite("mean", {heads_, dim_}, DType::kF64);
    }
    sample.basis.lambda = finite("lambda", {heads_, dim_}, DType::kF64);
    for (auto own = sample.basis.lambda.begin(); own != sample.basis.lambda.end(); own += dim_) {
      if (*(own + dim_ - 1) >= 0 && std::is_sorted(own, own + dim_, std::greater<>())) continue;
      refuse("lambda", "has variances that are negative or do not descend");
    }
    read_rows(sample);
    return sample;
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    throw DataError("the tensor " + prefix_ + name + " " + what, where_, kTakeSumsAgain);
  }

  [[nodiscard]] std::vector<double> finite(const std::string& name, const std::vector<std::int64_t>& shape,
                                           DType dtype) const {
    const TensorRef& tensor = file_.at(prefix_ + name);
    if (tensor.shape != shape || tensor.dtype != dtype) {
      refuse(name, "has the shape " + shape_text(tensor.shape) + " or a type that does not fit");
    }
    std::vector<double> values = file_.load(prefix_ + name).to_doubles();
    if (!std::ranges::all_of(values, [](double x) { return std::isfinite(x); })) refuse(name, "is not finite");
    return values;
  }

  [[nodiscard]] MatrixStack matrices(const std::string& name) const {
    MatrixStack stack(static_cast<int>(heads_), static_cast<int>(dim_));
    stack.data = finite(name, {heads_, dim_, dim_}, DType::kF64);
    return stack;
  }

  void read_rows(CodedSample& sample) const {
    const std::vector<std::int64_t>& shape = file_.at(prefix_ + "rows").shape;
    if (shape.size() != 3 || shape[0] != heads_ || shape[1] < 1 || shape[2] != dim_) {
      refuse("rows", "has the shape " + shape_text(shape));
    }
    const std::vector<double> all = finite("rows", shape, DType::kF32);
    const auto size = static_cast<std::ptrdiff_t>(shape[1] * dim_);
    for (auto own = all.begin(); own != all.end(); own += size) sample.rows.emplace_back(own, own + size);
  }

  const SafetensorsFile& file_;
  std::string prefix_;
  const std::string& where_;
  std::int64_t heads_ = 0, dim_ = 0;
};

}  // namespace

void write_coded_data(const std::filesystem::path& path, const CodedData& data) {
  CodedTensors tensors;
  for (const CodedLayerData& layer : data.layers) {
    add_coded_sample(coded_prefix(layer.layer_id, "key"), layer.key, tensors);
    add_coded_sample(coded_prefix(layer.layer_id, "value"), layer.value, tensors);
  }
  const Json manifest = coded_data_manifest(data);
  validate_json(manifest, kCodedDataSchema, path.string());
  write_safetensors(path, tensors, {{"schema", kCodedDataSchema}, {"manifest", manifest.dump()}}, Checksums::kYes);
}

CodedData read_coded_data(const std::filesystem::path& path) {
  const std::string where = path.string();
  const SafetensorsFile file(path);
  const auto& metadata = file.metadata();
  if (!metadata.contains("schema") || metadata.at("schema") != kCodedDataSchema || !metadata.contains("manifest")) {
    throw DataError("not a file of statistics for the coded cache", where,
                    "give the file that oscar fit --recipe coded --save-stats wrote");
  }
  const Json manifest = parse_json(metadata.at("manifest"), where);
  validate_json(manifest, kCodedDataSchema, where);
  CodedData data;
  data.model = model_identity_from_json(manifest["model"]);
  data.calibration = calibration_data_from_json(manifest["calibration"]);
  data.windows = {manifest["windows"]["sink"], manifest["windows"]["recent"]};
  data.recipe = manifest["recipe"];
  for (const Json& layer : manifest["layers"]) {
    const int id = layer["layer_id"];
    if (!data.layers.empty() && id <= data.layers.back().layer_id) {
      throw DataError("layers are not in ascending order", where, kTakeSumsAgain);
    }
    data.layers.push_back({id, SampleReader(file, coded_prefix(id, "key"), where).read(true),
                           SampleReader(file, coded_prefix(id, "value"), where).read(false)});
    data.weights.push_back({layer["key_weight"], layer["value_weight"]});
  }
  return data;
}

bool is_coded_data(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  return file.metadata().contains("schema") && file.metadata().at("schema") == kCodedDataSchema;
}

}  // namespace oscar
