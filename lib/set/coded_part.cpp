// SPDX-License-Identifier: MIT
#include "set/coded_part.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/version.hpp"
#include "kernels/reference/coded_row.hpp"
#include "set/manifest.hpp"
#include "set/one_truth.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

/// What people want to see of a side without opening the matrices.
Json describe(const CodedSide& side) {
  Json bytes = Json::array(), widest = Json::array();
  for (const CodedFormat& format : side.formats) {
    bytes.push_back(reference::coded_row_bytes(format));
    widest.push_back(format.levels.front());
  }
  return {{"bits", bits_of(side)},
          {"row_bytes", std::move(bytes)},
          {"most_levels", std::move(widest)},
          {"damage", side.damage}};
}

constexpr const char* kTensors = "coded.safetensors";

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// One value of every channel of every head, (Hkv, d).
template <class T>
std::vector<T> joined(const CodedSide& side, std::vector<T> CodedFormat::*member) {
  std::vector<T> all;
  for (const CodedFormat& format : side.formats)
    all.insert(all.end(), (format.*member).begin(), (format.*member).end());
  return all;
}

/// A float32 tensor of numbers that are exact in float32.
Tensor float_tensor(std::vector<std::int64_t> shape, const std::vector<double>& values) {
  const std::vector<float> floats(values.begin(), values.end());
  return Tensor::from(std::move(shape), std::span<const float>(floats));
}

void add_side(const std::string& prefix, const CodedSide& side, bool has_mean, NamedTensors& tensors) {
  const std::int64_t heads = side.transform.rotation.count, dim = side.transform.rotation.dim;
  const auto add = [&](const char* name, Tensor tensor) { tensors.emplace_back(prefix + name, std::move(tensor)); };
  add("write", float_tensor({heads, dim, dim}, side.transform.rotation.data));
  add("read", float_tensor({heads, dim, dim}, side.transform.read_rotation.data));
  if (has_mean) {
    std::vector<double> mean = side.transform.mean;
    mean.resize(static_cast<std::size_t>(heads * dim));  // zeros, where keys are not centred
    add("mean", float_tensor({heads, dim}, mean));
  }
  const std::vector<int> levels = joined(side, &CodedFormat::levels);
  const std::vector<float> step = joined(side, &CodedFormat::step), sigma = joined(side, &CodedFormat::sigma);
  add("levels", Tensor::from({heads, dim}, std::span<const std::int32_t>(levels)));
  add("step", Tensor::from({heads, dim}, std::span<const float>(step)));
  add("sigma", Tensor::from({heads, dim}, std::span<const float>(sigma)));
  add("lambda", float_tensor({heads, dim}, side.lambda));
}

/// Reads tensors of one side, each of the shape that it must have.
class SideReader {
 public:
  SideReader(const SafetensorsFile& file, std::string prefix, const std::string& where)
      : file_(file), prefix_(std::move(prefix)), where_(where) {}

  [[nodiscard]] CodedSide read(bool has_mean) {
    const TensorRef& write = file_.at(prefix_ + "write");
    if (write.shape.size() != 3 || write.shape[1] != write.shape[2] || write.shape[0] < 1) refuse("write", write.shape);
    heads_ = write.shape[0], dim_ = write.shape[1];
    CodedSide side;
    side.transform.rotation = matrices("write");
    side.transform.read_rotation = matrices("read");
    if (has_mean) side.transform.mean = floats("mean", {heads_, dim_});
    if (std::ranges::all_of(side.transform.mean, [](double x) { return x == 0; })) side.transform.mean.clear();
    side.lambda = floats("lambda", {heads_, dim_});
    const std::vector<double> levels = values("levels", {heads_, dim_}, DType::kI32);
    const std::vector<double> step = floats("step", {heads_, dim_}), sigma = floats("sigma", {heads_, dim_});
    for (std::int64_t first = 0; first < heads_ * dim_; first += dim_) {
      const auto part = [&](const std::vector<double>& all) {
        return std::span(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(dim_));
      };
      CodedFormat format;
      for (const double x : part(levels)) format.levels.push_back(static_cast<int>(x));
      for (const double x : part(step)) format.step.push_back(static_cast<float>(x));
      for (const double x : part(sigma)) format.sigma.push_back(static_cast<float>(x));
      try {
        reference::require_valid(format);
      } catch (const std::logic_error& error) {
        throw DataError(fmt::format("the format of KV head {} cannot be packed: {}", first / dim_, error.what()),
                        where_ + ", " + prefix_ + "levels", "fit the set again");
      }
      side.formats.push_back(std::move(format));
    }
    return side;
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::vector<std::int64_t>& shape) const {
    throw DataError(
        "the tensor " + prefix_ + name + " has the shape " + shape_text(shape) + " or a type that does not fit", where_,
        "fit the set again");
  }
  [[nodiscard]] std::vector<double> values(const std::string& name, const std::vector<std::int64_t>& shape,
                                           DType dtype) const {
    const TensorRef& tensor = file_.at(prefix_ + name);
    if (tensor.shape != shape || tensor.dtype != dtype) refuse(name, tensor.shape);
    return file_.load(prefix_ + name).to_doubles();
  }
  [[nodiscard]] std::vector<double> floats(const std::string& name, const std::vector<std::int64_t>& shape) const {
    std::vector<double> all = values(name, shape, DType::kF32);
    if (std::ranges::all_of(all, [](double x) { return std::isfinite(x); })) return all;
    throw DataError("the tensor " + prefix_ + name + " has values that are not finite", where_, "fit the set again");
  }
  [[nodiscard]] MatrixStack matrices(const std::string& name) const {
    MatrixStack stack(static_cast<int>(heads_), static_cast<int>(dim_));
    stack.data = floats(name, {heads_, dim_, dim_});
    return stack;
  }

  const SafetensorsFile& file_;
  std::string prefix_;
  const std::string& where_;
  std::int64_t heads_ = 0, dim_ = 0;
};

std::string prefix_of(int layer_id, const char* side) { return fmt::format("layers.{}.{}.", layer_id, side); }

Json coded_manifest(const CodedPart& set, Json files) {
  Json layers = Json::array();
  for (const CodedLayer& layer : set.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"head_dim", layer.key.transform.rotation.dim},
                      {"value_dim", layer.value.transform.rotation.dim},
                      {"key", describe(layer.key)},
                      {"value", describe(layer.value)}});
  }
  return {{"schema", kCodedSchema},
          {"oscar_version", kVersion},
          {"model", to_json(set.model)},
          {"calibration", to_json(set.calibration)},
          {"recipe", set.recipe},
          {"windows", {{"sink", set.windows.sink}, {"recent", set.windows.recent}}},
          {"codec", {{"name", "coded"}, {"bits", set.bits}, {"bits_taken", bits_of(set)}, {"scope", set.scope}}},
          {"layers", std::move(layers)},
          {"files", std::move(files)},
          {"verification", set.verification}};
}

/// Without what coded.safetensors holds: layers have their ids.
CodedPart coded_set_from_manifest(const Json& manifest, const std::string& where) {
  validate_json(manifest, kCodedSchema, where);
  CodedPart set;
  set.model = model_identity_from_json(manifest["model"]);
  set.calibration = calibration_data_from_json(manifest["calibration"]);
  set.windows = {manifest["windows"]["sink"], manifest["windows"]["recent"]};
  set.bits = manifest["codec"]["bits"];
  set.scope = manifest["codec"]["scope"];
  set.recipe = manifest["recipe"];
  set.verification = manifest.value("verification", Json());
  for (const Json& layer : manifest["layers"]) {
    CodedLayer& added = set.layers.emplace_back();
    added.layer_id = layer["layer_id"];
    added.key.damage = layer["key"]["damage"], added.value.damage = layer["value"]["damage"];
  }
  return set;
}

}  // namespace

double bits_of(const CodedSide& side) {
  double bytes = 0;
  for (const CodedFormat& format : side.formats) bytes += static_cast<double>(reference::coded_row_bytes(format));
  return 8 * bytes / static_cast<double>(side.lambda.size());
}

double bits_of(const CodedPart& set) {
  double bits = 0, channels = 0;
  for (const CodedLayer& layer : set.layers) {
    for (const CodedSide* side : {&layer.key, &layer.value}) {
      const auto width = static_cast<double>(side->lambda.size());
      bits += width * bits_of(*side);
      channels += width;
    }
  }
  return channels > 0 ? bits / channels : 0;
}

bool is_coded_set(const std::filesystem::path& folder) {
  const std::filesystem::path manifest = folder / "manifest.json";
  if (!std::filesystem::is_regular_file(manifest)) return false;
  const Json json = read_json(manifest);
  return json.is_object() && json.contains("schema") && json["schema"] == kCodedSchema;
}

void write_coded_set(const std::filesystem::path& folder, const CodedPart& set, bool replace) {
  AtomicFolder out(folder, replaceable_set(replace));
  NamedTensors tensors;
  for (const CodedLayer& layer : set.layers) {
    add_side(prefix_of(layer.layer_id, "key"), layer.key, true, tensors);
    add_side(prefix_of(layer.layer_id, "value"), layer.value, false, tensors);
  }
  write_safetensors(out.path() / kTensors, tensors, {{"schema", kCodedSchema}});
  const Json manifest = coded_manifest(set, list_with_hashes(out.path(), list_files(out.path())));
  validate_json(manifest, kCodedSchema, folder.string());
  write_json(out.path() / "manifest.json", manifest);
  out.commit();
}

CodedPart read_coded_set(const std::filesystem::path& folder) {
  const std::string where = (folder / "manifest.json").string();
  const Json manifest = read_json(where);
  CodedPart set = coded_set_from_manifest(manifest, where);
  check_listed_files(folder, manifest);
  const std::string path = (folder / kTensors).string();
  const SafetensorsFile file(path);
  for (CodedLayer& layer : set.layers) {
    const auto read = [&](const char* name, CodedSide& side, bool has_mean) {
      const double damage = side.damage;
      side = SideReader(file, prefix_of(layer.layer_id, name), path).read(has_mean);
      side.damage = damage;
    };
    read("key", layer.key, true);
    read("value", layer.value, false);
  }
  return set;
}

void require_sound_set_of_any_kind(const std::filesystem::path& folder) {
  if (!is_coded_set(folder)) return require_sound_set(folder);
  (void)read_coded_set(folder);
}

}  // namespace oscar
