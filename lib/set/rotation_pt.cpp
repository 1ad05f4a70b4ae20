// SPDX-License-Identifier: MIT
#include <algorithm>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "set/formats.hpp"
#include "set/manifest.hpp"
#include "set/names.hpp"
#include "set/serve_env.hpp"

namespace oscar {
namespace {

template <class T>
PtItem item(const char* name, T value) {
  return {{std::string(name)}, {std::move(value)}};
}

[[noreturn]] void fail(const std::string& what, const std::string& where) {
  throw DataError(what, where, "check that this is a rotation file; \"oscar inspect\" says what it is");
}

template <class T>
const T& member(const PtValue& dict, const char* name, const std::string& where) {
  const T* value = member_of<T>(&dict, name);
  if (value == nullptr) fail(std::string("the member \"") + name + "\" is absent or of another type", where);
  return *value;
}

/// A member that need not be there; null: it is not, or None.
template <class T>
const T* optional_member(const PtValue* dict, const char* name, const std::string& where) {
  if (dict == nullptr || member_of<std::monostate>(dict, name) != nullptr) return nullptr;
  return dict->find(std::string(name)) == nullptr ? nullptr : &member<T>(*dict, name, where);
}

int layer_id_of(const PtValue& key, const std::string& where) {
  std::int64_t id = -1;
  if (const auto* number = key.get_if<std::int64_t>()) id = *number;
  if (const auto* text = key.get_if<std::string>()) id = parse_number(*text).value_or(-1);
  if (id < 0 || id >= kMostLayers) fail("a layer has no number, or one beyond " + std::to_string(kMostLayers), where);
  return static_cast<int>(id);
}

SideTransform side_from(const PtValue& layer, const std::string& where) {
  SideTransform side;
  side.rotation = MatrixStack::from(member<Tensor>(layer, "rotation", where), where + ", rotation");
  for (const char* name : {"q_rotation", "o_rotation"}) {
    if (layer.find(std::string(name)) == nullptr) continue;
    side.read_rotation = MatrixStack::from(member<Tensor>(layer, name, where), where + ", " + name);
    if (side.read_rotation.dim == side.rotation.dim && side.read_rotation.count == side.rotation.count) continue;
    fail(std::string(name) + " does not fit the rotation", where);
  }
  if (layer.find(std::string("k_mean")) != nullptr) {
    side.mean = member<Tensor>(layer, "k_mean", where).to_doubles();
    if (side.mean.empty() || side.mean.size() % static_cast<std::size_t>(side.rotation.dim) != 0) {
      fail("k_mean does not fit the rotation", where);
    }
  }
  const PtValue* eigenvalues = layer.find(std::string("eigenvalues"));
  if (eigenvalues != nullptr && eigenvalues->get_if<std::monostate>() == nullptr) {
    const auto* tensor = eigenvalues->get_if<Tensor>();
    if (tensor == nullptr) fail("eigenvalues are not a tensor", where);
    side.eigenvalues = tensor->to_doubles();
    if (side.eigenvalues.size() != static_cast<std::size_t>(side.rotation.count) * side.rotation.dim) {
      fail("the number of eigenvalues does not fit the rotation", where);
    }
  }
  return side;
}

bool is_share(double ratio) { return ratio >= 0 && ratio <= 1; }

/// Nothing unless `root` has a table of them, and the one for all.
void take_clip_ratios(const PtValue& root, RotationFile& file, const std::string& where) {
  const PtValue* calibration = root.find(std::string("calibration"));
  const auto* whole = member_of<std::int64_t>(calibration, "clip_scalar");
  const auto* scalar = whole == nullptr ? optional_member<double>(calibration, "clip_scalar", where) : nullptr;
  if (optional_member<PtDict>(calibration, "clip_ratio", where) == nullptr || (whole == nullptr && scalar == nullptr))
    return;
  file.has_clip_ratios = true;
  file.clip_scalar = whole == nullptr ? *scalar : static_cast<double>(*whole);
  if (!is_share(file.clip_scalar)) fail("clip_scalar is not from 0 to 1", where);
  for (auto& [id, side] : file.layers) {
    const auto* tensor = member_of<Tensor>(calibration->find(std::string("clip_ratio")), std::int64_t{id});
    std::vector<double> values = tensor == nullptr ? std::vector<double>() : tensor->to_doubles();
    if (values.empty() || !std::ranges::all_of(values, is_share)) {
      fail("there is no tensor of clip ratios from 0 to 1 of layer " + std::to_string(id), where);
    }
    side.clip_ratio = values.front();
    if (values.size() > 1) side.head_clip_ratios = std::move(values);
  }
}

void append_extension(const SideTransform& side, const char* read_name, bool per_head, PtDict& entry) {
  if (side.read_rotation.count > 0) {
    entry.push_back(item(read_name, side.read_rotation.to_f32(/*squeeze=*/!per_head)));
  }
  if (side.mean.empty()) return;
  const auto dim = static_cast<std::int64_t>(side.rotation.dim);
  const auto heads = static_cast<std::int64_t>(side.mean.size()) / dim;
  entry.push_back(item("k_mean", Tensor::from({heads, dim}, std::span(side.mean))));
}

std::string text_or_empty(const PtValue* dict, const char* name, const std::string& where) {
  const auto* text = optional_member<std::string>(dict, name, where);
  return text == nullptr ? "" : plain_text(*text, std::string("\"") + name + "\"", where);
}

std::int64_t number_or_zero(const PtValue* dict, const char* name, const std::string& where) {
  const auto* number = optional_member<std::int64_t>(dict, name, where);
  return number == nullptr ? 0 : *number;
}

/// What the file says of how it is to be served must at least be something that there is.
void check_vocabulary(const PtValue& root, const std::string& where) {
  const PtValue* transform = root.find(std::string("transform"));
  const auto require = [&](const PtValue* dict, const char* name, std::initializer_list<std::string_view> known) {
    const std::string text = text_or_empty(dict, name, where);
    if (text.empty() || std::ranges::find(known, text) != known.end()) return;
    fail(std::string("unknown ") + name + " \"" + text + "\"", where);
  };
  require(&root, "source_grouping", {"layer", "head"});
  require(transform, "codec", {"minmax", "lloyd-max"});
  require(transform, "scale_dtype", {"float32", "float16", "bfloat16"});
  (void)text_or_empty(transform, "recipe", where);
}

constexpr const char* kOtherCodec = "fit a set of your own: oscar fit";
constexpr int kMostGroup = 1 << 20;  // more channels than a row has

/// Of the names check_vocabulary() has seen to. What the file does not tell stays as it is.
void take_codec(const PtValue& root, RotationFile& file, const std::string& where) {
  const PtValue* transform = root.find(std::string("transform"));
  const std::string grid = text_or_empty(transform, "codec", where);
  const std::string scale_dtype = text_or_empty(transform, "scale_dtype", where);
  const std::int64_t group = number_or_zero(transform, "group_size", where);
  file.has_codec = !grid.empty();
  if (file.has_codec) file.codec.grid = grid_from_name(grid);
  if (!scale_dtype.empty()) file.codec.scale_dtype = dtype_from_name(scale_dtype);
  file.codec.group_size = static_cast<int>(std::clamp<std::int64_t>(group, -1, kMostGroup));
  for (const char* name : {"key_levels", "value_levels"}) {
    if (const std::int64_t levels = number_or_zero(transform, name, where);
        levels != 0 && levels != file.codec.levels) {
      file.other_levels = levels;
    }
  }
}

/// A codec that a set can hold.
void require_known_codec(const RotationFile& file, const std::string& where) {
  const int group = file.codec.group_size;
  for (const auto& [id, side] : file.layers) {
    if (group == 0 || (group > 0 && side.rotation.dim % group == 0)) continue;
    throw DataError("groups of " + std::to_string(group) + " channels do not fit layer " + std::to_string(id), where,
                    kOtherCodec);
  }
  if (file.other_levels == 0) return;
  throw DataError("the codec has " + std::to_string(file.other_levels) + " levels, and sets have " +
                      std::to_string(file.codec.levels),
                  where, kOtherCodec);
}

void read_provenance(const PtValue& root, RotationFile& file, const std::string& where) {
  const PtValue* told = root.find(std::string("calibration"));
  const auto heads = [&](const char* name) {
    const std::int64_t count = number_or_zero(told, name, where);
    return count > 0 && count < 100000 ? static_cast<int>(count) : 0;
  };
  file.model.id = text_or_empty(told, "model_path", where);
  file.model.revision = text_or_empty(told, "model_revision", where);
  file.model.num_key_value_heads = heads("global_kv_heads");
  file.model.num_attention_heads = heads("global_q_heads");
  file.calibration.data_sha256 = text_or_empty(told, "prompt_sha256", where);
  file.calibration.tokens = std::max<std::int64_t>(0, number_or_zero(told, "tokens", where));
}

/// The version to write: the lowest that holds the layers, or a higher one that was asked for.
std::int64_t choose_version(const RotationPart& set, SideOfLayer side, int asked, const std::string& where) {
  const int lowest = lowest_pt_version(set, side);
  if (asked == 0 || asked >= lowest) return std::max(asked, lowest);
  throw DataError(std::string("the set has ") +
                      (lowest == 3 ? "read sides or means of its own" : "one rotation per head") + ", which version " +
                      std::to_string(asked) + " cannot hold",
                  where, "ask for version " + std::to_string(lowest));
}

/// One matrix, or one spectrum, for each of `heads` heads.
SideTransform repeated(const SideTransform& side, int heads) {
  SideTransform out = side;
  for (int head = side.rotation.count; head < heads; ++head) {
    out.rotation.data.insert(out.rotation.data.end(), side.rotation.data.begin(), side.rotation.data.end());
    out.eigenvalues.insert(out.eigenvalues.end(), side.eigenvalues.begin(), side.eigenvalues.end());
    ++out.rotation.count;
  }
  return out;
}

PtDict layer_entry(int id, const SideTransform& side, bool per_head, const char* read_name) {
  PtDict entry{item("layer_id", std::int64_t{id}), item("rotation", side.rotation.to_f32(/*squeeze=*/!per_head))};
  if (!side.eigenvalues.empty()) {
    const std::vector<float> eigenvalues(side.eigenvalues.begin(), side.eigenvalues.end());
    std::vector<std::int64_t> shape{side.rotation.dim};
    if (per_head) shape.insert(shape.begin(), side.rotation.count);
    entry.push_back(item("eigenvalues", Tensor::from(shape, std::span(eigenvalues))));
  }
  append_extension(side, read_name, per_head, entry);
  return entry;
}

PtValue clip_ratios_of(const RotationPart& set, SideOfLayer side) {
  PtDict ratios;
  for (const LayerRotation& layer : set.layers) {
    const SideTransform& own = layer.*side;
    std::vector<double> values = own.head_clip_ratios;
    if (values.empty()) values = {own.clip_ratio};
    const auto count = static_cast<std::int64_t>(values.size());
    ratios.push_back({{std::int64_t{layer.layer_id}}, {Tensor::from({count}, std::span<const double>(values))}});
  }
  return {std::move(ratios)};
}

int id_of(const std::pair<int, SideTransform>& layer) { return layer.first; }

RotationPart combine(const RotationFile& keys, const RotationFile& values, const std::string& where) {
  RotationPart part;
  part.key_objective = keys.objective, part.value_objective = values.objective;
  part.model = keys.model;
  part.calibration = keys.calibration;
  require_known_codec(keys, where), require_known_codec(values, where);
  const auto require = [&](bool same, const char* what) {
    if (same) return;
    throw DataError(std::string("the key file and the value file have different ") + what, where,
                    "use two files of the same fit");
  };
  const auto same = [](const std::string& a, const std::string& b) { return a.empty() || b.empty() || a == b; };
  require(same(keys.model.id, values.model.id) && same(keys.model.revision, values.model.revision), "models");
  require(same(keys.calibration.data_sha256, values.calibration.data_sha256), "calibration data");
  require(!keys.has_codec || !values.has_codec || keys.codec == values.codec, "codecs");
  require(std::ranges::equal(keys.layers, values.layers, {}, id_of, id_of), "layers");
  part.key_codec = part.value_codec = values.has_codec ? values.codec : keys.codec;
  part.has_clip_ratios = keys.has_clip_ratios && values.has_clip_ratios;
  part.key_clip_scalar = keys.clip_scalar, part.value_clip_scalar = values.clip_scalar;
  for (std::size_t i = 0; i < keys.layers.size(); ++i) {
    if (!values.layers[i].second.mean.empty()) fail("the value file has k_mean, which no reader adds to values", where);
    part.layers.push_back({keys.layers[i].first, keys.layers[i].second, values.layers[i].second});
  }
  return part;
}

}  // namespace

RotationFormats parse_rotation_formats(const std::string& text) {
  for (const auto& [name, formats] :
       {std::pair{"pt,h5", RotationFormats{}}, {"h5,pt", {}}, {"pt", {.h5 = false}}, {"h5", {.pt = false}}}) {
    if (text == name) return formats;
  }
  throw UsageError("unknown format \"" + text + "\"", "--format", "use pt, h5 or pt,h5");
}

void write_rotation_pt_files(const fs::path& folder, const RotationPart& set, int version) {
  for (const auto& [name, side] :
       {std::pair{key_pt_name(set), &LayerRotation::key}, {value_pt_name(set), &LayerRotation::value}}) {
    write_pt(folder / name, side_pt(set, side, version, (folder / name).string()));
  }
}

void fill_from_pt(const fs::path& folder, RotationPart& set) {
  const RotationPart from = set.latent ? read_rotation_mla(folder)
                                       : combine(read_rotation_pt(folder / key_pt_name(set)),
                                                 read_rotation_pt(folder / value_pt_name(set)), folder.string());
  if (!std::ranges::equal(from.layers, set.layers, {}, &LayerRotation::layer_id, &LayerRotation::layer_id)) {
    throw DataError("the .pt files have other layers than the manifest", folder.string(), "fit the set again");
  }
  for (std::size_t i = 0; i < set.layers.size(); ++i) {
    for (const SideOfLayer side : {&LayerRotation::key, &LayerRotation::value}) {
      static_cast<Transform&>(set.layers[i].*side) = from.layers[i].*side;
      (set.layers[i].*side).eigenvalues = (from.layers[i].*side).eigenvalues;
    }
  }
}

Set read_foreign_files(const fs::path& key_file, const fs::path& value_file) {
  const RotationFile keys = read_rotation_pt(key_file), values = read_rotation_pt(value_file);
  const RotationPart part = combine(keys, values, key_file.parent_path().string());
  Set set = set_of(part);
  set.origin = describe_origin(part, "pt v" + std::to_string(keys.version), {key_file, value_file},
                               keys.has_codec || values.has_codec);
  return set;
}

Set read_foreign_folder(const fs::path& folder, const std::string& pair) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  const RotationPair chosen = choose_pair(names, pair, folder.string());
  return read_foreign_files(folder / chosen.key_file, folder / chosen.value_file);
}

RotationFile read_rotation_pt(const fs::path& path) {
  const PtValue root = read_pt(path);
  const std::int64_t version = member<std::int64_t>(root, "format_version", path.string());
  if (version < 1 || version > 3) fail("unknown format version " + std::to_string(version), path.string());
  RotationFile file;
  file.version = static_cast<int>(version);
  check_vocabulary(root, path.string());
  read_provenance(root, file, path.string());
  file.objective = known_objective(member<std::string>(root, "objective", path.string()), path.string());
  for (const auto& [key, layer] : member<PtDict>(root, "layers", path.string())) {
    const int id = layer_id_of(key, path.string());
    file.layers.emplace_back(id, side_from(layer, path.string() + ", layer " + std::to_string(id)));
  }
  if (file.layers.empty()) fail("the file has no layers", path.string());
  std::ranges::sort(file.layers, {}, id_of);
  const auto twice = std::ranges::adjacent_find(file.layers, {}, id_of);
  if (twice != file.layers.end()) fail("layer " + std::to_string(twice->first) + " stands twice", path.string());
  take_clip_ratios(root, file, path.string());
  take_codec(root, file, path.string());
  return file;
}

int lowest_pt_version(const RotationPart& set, SideOfLayer side) {
  int lowest = 1;
  for (const LayerRotation& layer : set.layers) {
    const SideTransform& own = layer.*side;
    if (own.read_rotation.count > 0 || !own.mean.empty()) return 3;
    if (own.rotation.count > 1) lowest = 2;
  }
  return lowest;
}

PtValue side_pt(const RotationPart& set, SideOfLayer side, int asked, const std::string& where) {
  const bool key = side == &LayerRotation::key;
  const bool several = std::ranges::any_of(set.layers, [&](const auto& l) { return (l.*side).rotation.count > 1; });
  const std::int64_t version = choose_version(set, side, asked, where);
  const bool per_head = several || version == 2;
  if (per_head && !several && set.model.num_key_value_heads == 0) {
    throw DataError("version 2 has a matrix for each KV head, and nothing tells how many there are", where,
                    "ask for version 1 or 3, or convert a set of oscar");
  }
  PtDict entries;
  for (const LayerRotation& layer : set.layers) {
    const SideTransform& own = layer.*side;
    const bool repeat = version == 2 && own.rotation.count == 1;
    PtDict entry = layer_entry(layer.layer_id, repeat ? repeated(own, set.model.num_key_value_heads) : own, per_head,
                               key ? "q_rotation" : "o_rotation");
    entries.push_back({{std::int64_t{layer.layer_id}}, {std::move(entry)}});
  }
  PtDict root{item<std::int64_t>("format_version", version),
              item<std::string>("objective", key ? set.key_objective : set.value_objective),
              item<std::string>("source_grouping", per_head ? "head" : "layer"), item("layers", std::move(entries))};
  if (version < 3) return {std::move(root)};
  PtDict transform{item<std::string>("recipe", recipe_of(set.recipe)["name"]),
                   item<std::string>("codec", std::string(name_of(set.key_codec.grid))),
                   item<std::int64_t>("key_levels", set.key_codec.levels),
                   item<std::int64_t>("value_levels", set.value_codec.levels),
                   item<std::int64_t>("group_size", set.key_codec.group_size),
                   item<std::string>("scale_dtype", std::string(name_of(set.key_codec.scale_dtype)))};
  PtDict calibration{item<std::string>("model_path", set.model.id),
                     item<std::string>("model_revision", set.model.revision),
                     item<std::string>("prompt_sha256", set.calibration.data_sha256),
                     item<std::int64_t>("tokens", set.calibration.tokens),
                     item<std::int64_t>("global_kv_heads", set.model.num_key_value_heads),
                     item<std::int64_t>("global_q_heads", set.model.num_attention_heads)};
  if (set.has_clip_ratios) {
    calibration.push_back({{std::string("clip_ratio")}, clip_ratios_of(set, side)});
    calibration.push_back(item("clip_scalar", key ? set.key_clip_scalar : set.value_clip_scalar));
  }
  root.push_back(item("transform", std::move(transform)));
  root.push_back(item("calibration", std::move(calibration)));
  return {std::move(root)};
}

PtValue key_means_pt(const RotationPart& set) {
  PtDict layers;
  for (const LayerRotation& layer : set.layers) {
    std::vector<float> mean(layer.key.mean.begin(), layer.key.mean.end());
    const std::int64_t dim = layer.key.rotation.dim;
    if (mean.empty()) mean.resize(static_cast<std::size_t>(dim));
    const std::vector<float> first = mean;
    const auto heads =
        std::max<std::int64_t>(static_cast<std::int64_t>(mean.size()) / dim, set.model.num_key_value_heads);
    while (static_cast<std::int64_t>(mean.size()) < heads * dim) mean.insert(mean.end(), first.begin(), first.end());
    layers.push_back({{std::int64_t{layer.layer_id}},
                      {PtDict{item("mu", Tensor::from({heads, dim}, std::span<const float>(mean)))}}});
  }
  return {PtDict{item("layers", std::move(layers))}};
}

PtValue latent_pt(const LayerRotation& layer) {
  const SideTransform& latent = layer.key;
  if (latent.read_rotation.count == 0 && latent.mean.empty()) return {latent.rotation.to_f32(true)};
  PtDict entry{item("rotation", latent.rotation.to_f32(true))};
  if (latent.read_rotation.count > 0) entry.push_back(item("q_rotation", latent.read_rotation.to_f32(true)));
  if (!latent.mean.empty()) {
    const std::vector<float> mean(latent.mean.begin(), latent.mean.end());
    entry.push_back(item("mean", Tensor::from({static_cast<std::int64_t>(mean.size())}, std::span(mean))));
  }
  return {std::move(entry)};
}

}  // namespace oscar
