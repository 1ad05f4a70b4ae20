// SPDX-License-Identifier: MIT
#include "rotation/rotation_h5.hpp"

#include "base/errors.hpp"
#include "base/version.hpp"
#include "tensor/hdf5.hpp"

namespace oscar {
namespace {

std::string side_group(int layer_id, const char* side) { return "/layers/" + std::to_string(layer_id) + "/" + side; }

/// Of the read side, as in format version 3 of the .pt files.
const char* read_name(const std::string& group) { return group.ends_with("/key") ? "q_rotation" : "o_rotation"; }

void write_side(Hdf5Writer& file, const std::string& group, const SideTransform& side, bool has_clip_ratios) {
  const bool squeeze = side.rotation.count == 1;
  file.write(group + "/rotation", side.rotation.to_f32(squeeze));
  if (side.read_rotation.count > 0) file.write(group + "/" + read_name(group), side.read_rotation.to_f32(squeeze));
  if (!side.mean.empty()) {
    const auto dim = static_cast<std::int64_t>(side.rotation.dim);
    file.write(group + "/mean",
               Tensor::from({static_cast<std::int64_t>(side.mean.size()) / dim, dim}, std::span(side.mean)));
  }
  if (!side.eigenvalues.empty()) {
    const std::vector<float> eigenvalues(side.eigenvalues.begin(), side.eigenvalues.end());
    std::vector<std::int64_t> shape{side.rotation.dim};
    if (!squeeze) shape.insert(shape.begin(), side.rotation.count);
    file.write(group + "/eigenvalues", Tensor::from(shape, std::span(eigenvalues)));
  }
  if (side.covariance.count > 0) file.write(group + "/covariance", side.covariance.to_f32(squeeze));
  if (side.query_covariance.count > 0) file.write(group + "/query_covariance", side.query_covariance.to_f32(squeeze));
  if (has_clip_ratios) file.attribute(group, "clip_ratio", side.clip_ratio);
}

void read_side(const Hdf5Reader& file, const std::string& where, const std::string& group, SideTransform& side) {
  side.rotation = MatrixStack::from(file.read(group + "/rotation"), where + ":" + group + "/rotation");
  if (file.has(group + "/" + read_name(group))) {
    side.read_rotation = MatrixStack::from(file.read(group + "/" + read_name(group)), where + ":" + group);
  }
  if (file.has(group + "/mean")) side.mean = file.read(group + "/mean").to_doubles();
  if (file.has(group + "/eigenvalues")) side.eigenvalues = file.read(group + "/eigenvalues").to_doubles();
  for (const auto& [name, covariance] :
       {std::pair{"/covariance", &side.covariance}, std::pair{"/query_covariance", &side.query_covariance}}) {
    if (file.has(group + name)) *covariance = MatrixStack::from(file.read(group + name), where + ":" + group + name);
  }
  const auto numbers = static_cast<std::size_t>(side.rotation.count) * side.rotation.dim;
  const bool fits =
      (side.eigenvalues.empty() || side.eigenvalues.size() == numbers) &&
      (side.covariance.count == 0 || side.covariance.data.size() == side.rotation.data.size()) &&
      (side.query_covariance.count == 0 || side.query_covariance.data.size() == side.rotation.data.size()) &&
      (side.read_rotation.count == 0 || side.read_rotation.data.size() == side.rotation.data.size()) &&
      side.mean.size() % static_cast<std::size_t>(side.rotation.dim) == 0;
  if (!fits)
    throw DataError("read side, mean, eigenvalues or covariance do not fit the rotation", where + ":" + group,
                    "fit the set again");
}

}  // namespace

void write_rotation_h5(const std::filesystem::path& path, const RotationSet& set) {
  Hdf5Writer file(path);
  file.attribute("/", "schema", std::string("oscar.rotation_set.v1"));
  file.attribute("/", "oscar_version", std::string(kVersion));
  file.attribute("/", "model_id", set.model.id);
  file.attribute("/", "model_config_sha256", set.model.config_sha256);
  file.attribute("/", "calibration_data_sha256", set.calibration.data_sha256);
  file.attribute("/", "calibration_tokens", set.calibration.tokens);
  file.attribute("/", "recipe", set.recipe.dump());
  file.attribute("/", "key_objective", set.key_objective);
  file.attribute("/", "value_objective", set.value_objective);
  file.attribute("/", "sink", std::int64_t{set.windows.sink});
  file.attribute("/", "recent", std::int64_t{set.windows.recent});
  file.attribute("/", "codec", std::string(name_of(set.key_codec.grid)));
  file.attribute("/", "key_levels", std::int64_t{set.key_codec.levels});
  file.attribute("/", "value_levels", std::int64_t{set.value_codec.levels});
  file.attribute("/", "group_size", std::int64_t{set.key_codec.group_size});
  file.attribute("/", "scale_dtype", std::string(name_of(set.key_codec.scale_dtype)));
  for (const LayerRotation& layer : set.layers) {
    write_side(file, side_group(layer.layer_id, "key"), layer.key, set.has_clip_ratios);
    write_side(file, side_group(layer.layer_id, "value"), layer.value, set.has_clip_ratios);
  }
  file.commit();
}

void read_rotation_h5(const std::filesystem::path& path, RotationSet& set) {
  const Hdf5Reader file(path);
  for (LayerRotation& layer : set.layers) {
    read_side(file, path.string(), side_group(layer.layer_id, "key"), layer.key);
    read_side(file, path.string(), side_group(layer.layer_id, "value"), layer.value);
  }
}

}  // namespace oscar
