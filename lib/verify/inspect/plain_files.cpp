// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <set>

#include "base/errors.hpp"
#include "base/schemas.hpp"
#include "moments/statistics.hpp"
#include "peers/codebook_file.hpp"
#include "rotation/set_file.hpp"
#include "tensor/gguf.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/npy.hpp"
#include "tensor/safetensors.hpp"
#include "verify/inspect/kinds.hpp"

namespace oscar {
namespace {

Json facts_of(const Tensor& tensor) {
  return {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"elements", tensor.size()}};
}

bool is_finite(const Tensor& tensor) {
  if (!is_activation_dtype(tensor.dtype) && tensor.dtype != DType::kF64) return true;
  for (const double value : tensor.to_doubles()) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

Inspection inspect_tensor(const std::string& kind, const Tensor& tensor) {
  Inspection found{kind, facts_of(tensor), {}};
  if (!is_finite(tensor)) found.problems.emplace_back("holds values that are NaN or infinite");
  return found;
}

}  // namespace

Inspection inspect_npy(const std::filesystem::path& path) { return inspect_tensor("NumPy file", read_npy(path)); }

Inspection inspect_pt(const std::filesystem::path& path) {
  const PtValue archive = read_pt(path);
  if (const auto* tensor = archive.get_if<Tensor>()) return inspect_tensor("tensor file (.pt)", *tensor);
  if (archive.find("format_version") != nullptr && archive.find("layers") != nullptr) {
    return inspect_rotation_file(archive, path.string());
  }
  if (is_codebook_file(archive)) return inspect_codebook_file(archive, path.string());
  Json keys = Json::array();
  if (const auto* dict = archive.get_if<PtDict>()) {
    for (const auto& [key, value] : *dict) {
      if (const auto* text = key.get_if<std::string>()) keys.push_back(*text);
      if (const auto* number = key.get_if<std::int64_t>()) keys.push_back(*number);
    }
  }
  return {"PyTorch archive (.pt), not a rotation file", {{"keys", keys}}, {}};
}

namespace {

Inspection inspect_statistics(const std::filesystem::path& path) {
  const Statistics statistics = read_statistics({path});
  std::int64_t tokens = 0;
  for (const CalibrationData& part : statistics.data) tokens += part.tokens;
  const LayerStatistics& layer = statistics.layers.front();
  Json layers = Json::array(), sums = Json::array();
  for (const LayerStatistics& each : statistics.layers) layers.push_back(each.layer_id);
  for (const auto& [moment, moments] : layer.first.sums) sums.push_back(name_of(moment));
  if (layer.first.fisher) sums.push_back("fisher");
  if (layer.first.keys) sums.push_back("keys");
  if (layer.sst) sums.push_back("sst");
  return {"statistics (oscar.statistics.v1)",
          {{"model", statistics.model.id},
           {"layers", layers},
           {"parts", statistics.data.size()},
           {"tokens", tokens},
           {"sums", sums}},
          {}};
}

}  // namespace

Inspection inspect_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  if (file.metadata().contains("schema") && file.metadata().at("schema") == "oscar.statistics.v1") {
    return inspect_statistics(path);
  }
  std::set<std::string> dtypes;
  std::int64_t elements = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    dtypes.emplace(name_of(tensor.dtype));
    elements += num_elements(tensor.shape);
  }
  return {
      "safetensors file",
      {{"tensors", file.tensors().size()}, {"elements", elements}, {"dtypes", dtypes}, {"metadata", file.metadata()}},
      {}};
}

Inspection inspect_hdf5(const std::filesystem::path& path) {
  const Hdf5Reader file(path);
  Inspection found{"HDF5 file", {}, {}};
  if (file.has_attribute("/", "schema")) {
    const Hdf5Attribute schema = file.attribute("/", "schema");
    if (const auto* text = std::get_if<std::string>(&schema)) found.facts["schema"] = *text;
  }
  found.facts["members"] = file.members("/");
  if (!file.has("/layers")) return found;
  found.facts["layers"] = file.members("/layers");
  try {
    (void)read_set_file(path, SetFileKind::kH5);
  } catch (const DataError& error) {
    found.problems.push_back(error.what() + std::string(error.where().empty() ? "" : " (" + error.where() + ")"));
  }
  return found;
}

Inspection inspect_json(const std::filesystem::path& path) {
  const Json document = read_json(path);
  if (document.is_object() && document.contains("model") && document["model"].is_object() &&
      document["model"].contains("vocab")) {
    return {"tokenizer",
            {{"type", document["model"].value("type", Json())}, {"vocabulary", document["model"]["vocab"].size()}},
            {}};
  }
  const Json schema = document.is_object() ? document.value("schema", Json()) : Json();
  if (!schema.is_string() || schema_source(schema.get<std::string>()).empty()) {
    throw DataError("a JSON file, but not one that oscar writes or reads", path.string(),
                    "give the folder that it belongs to, or another file");
  }
  validate_json(document, schema.get<std::string>(), path.string());
  return {"document of schema " + schema.get<std::string>(), {{"members", document.size()}}, {}};
}

Inspection inspect_gguf(const std::filesystem::path& path) {
  const GgufFile file(path);
  const auto count = [&](const char* end) {
    return std::ranges::count_if(file.tensors(), [&](const GgufTensor& tensor) { return tensor.name.ends_with(end); });
  };
  return {"GGUF file",
          {{"version", file.version()},
           {"architecture", file.text("general.architecture").value_or("unknown")},
           {"tensors", file.tensors().size()},
           {"metadata_entries", file.entries().size()},
           {"key_rotations", count("attn_k_rot.weight")},
           {"value_rotations", count("attn_v_rot.weight")}},
          {}};
}

}  // namespace oscar
