// SPDX-License-Identifier: MIT
#include "inspect/inspect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "dump/server_file.hpp"
#include "model/weights/checkpoint.hpp"
#include "moments/statistics.hpp"
#include "set/formats.hpp"
#include "set/manifest.hpp"
#include "tensor/gguf.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/npy.hpp"
#include "tensor/pt.hpp"
#include "tensor/safetensors.hpp"
#include "verify/structure/objective.hpp"

namespace oscar {
namespace {

constexpr const char* kKnown =
    "give a dump, a set, a model folder, a zoo, or a .pt, .h5, .safetensors, .npy, .gguf or .json file";

Json facts_of(const Tensor& tensor) {
  return {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"elements", tensor.size()}};
}

bool is_finite(const Tensor& tensor) {
  if (!is_activation_dtype(tensor.dtype) && tensor.dtype != DType::kF64) return true;
  return std::ranges::all_of(tensor.to_doubles(), [](double value) { return std::isfinite(value); });
}

Inspection inspect_tensor(const std::string& kind, const Tensor& tensor) {
  Inspection found{kind, facts_of(tensor), {}};
  if (!is_finite(tensor)) found.problems.emplace_back("holds values that are NaN or infinite");
  return found;
}

/// Of all spectra: the smallest and the largest value, and how many directions the mean spectrum fills (exp of its
/// entropy). Null if there are none.
Json facts_of_eigenvalues(const RotationFile& file) {
  double low = INFINITY, high = -INFINITY, ranks = 0, spectra = 0;
  for (const auto& [layer, transform] : file.layers) {
    const Json summary = summarize_spectrum(transform);
    if (summary.is_null()) continue;
    low = std::min<double>(low, summary["min"]), high = std::max<double>(high, summary["max"]);
    ranks += summary["effective_rank"].get<double>(), spectra += 1;
  }
  return spectra == 0 ? Json() : Json{{"min", low}, {"max", high}, {"mean_effective_rank", ranks / spectra}};
}

/// A rotation file of format v1, v2 or v3, by the checks that verify holds it to.
Inspection inspect_rotations(const std::filesystem::path& path) {
  RotationFile file = read_rotation_pt(path);
  Json facts, layers = Json::array();
  std::set<int> head_dims, heads;
  std::int64_t query_rotations = 0, means = 0;
  for (const auto& [layer, transform] : file.layers) {
    layers.push_back(layer);
    head_dims.insert(transform.rotation.dim), heads.insert(transform.rotation.count);
    query_rotations += transform.read_rotation.count > 0 ? 1 : 0;
    means += transform.mean.empty() ? 0 : 1;
  }
  const auto one_or_all = [](const std::set<int>& values) {
    return values.size() == 1 ? Json(*values.begin()) : Json(values);
  };
  facts["format_version"] = file.version;
  const std::string composition = verify::composition_name(file.objective);
  facts["objective"] = file.objective.substr(0, file.objective.size() - composition.size());
  if (!composition.empty()) {
    facts["objective"].get_ref<std::string&>().pop_back();  // the underscore
    facts["composition"] = composition;
  }
  facts["num_layers"] = file.layers.size();
  facts["layers"] = layers;
  facts["head_dim"] = one_or_all(head_dims);
  facts["matrices_per_layer"] = one_or_all(heads);
  Json deviation{{"float32", 0.0}, {"bfloat16", 0.0}};
  facts["largest_deviation_from_orthogonal"] = deviation;  // in its place among what people read
  if (Json eigenvalues = facts_of_eigenvalues(file); !eigenvalues.is_null()) facts["eigenvalues"] = eigenvalues;
  if (query_rotations > 0) facts["layers_with_read_rotation"] = query_rotations;
  if (means > 0) facts["layers_with_key_mean"] = means;
  std::vector<Check> checks = structure_of(*verify::make_subject(path, std::move(file)), {});
  for (const Check& check : checks) {
    if (!check.name.starts_with("orthogonality") && !check.name.starts_with("inverse_pair")) continue;
    Json& largest = deviation[check.name.ends_with("_bf16") ? "bfloat16" : "float32"];
    largest = std::max(largest.get<double>(), *check.value);
  }
  facts["largest_deviation_from_orthogonal"] = deviation;
  return {"rotation file (.pt)", facts, problems_of(checks)};
}

/// What one rank of a server kept of its calibration. Of rows every value is looked at.
Inspection inspect_server_file(const std::filesystem::path& path) {
  const ServerFile file(path);
  if (!file.has_rows) return inspect_statistics(path);
  Inspection found{"rows of a server's calibration", {{"model", file.model.id}, {"layers", file.layer_ids}}, {}};
  found.facts.update({{"tokens", file.data.tokens}, {"tokens_per_query", file.stride}});
  found.facts["rank"] = fmt::format("{} of {}", file.rank, file.ranks);
  for (const int id : file.layer_ids) {
    for (const char* const name : {"k", "v", "q_samples"}) {
      if (is_finite(file.tensor(id, name))) continue;
      found.problems.push_back(fmt::format("layer {}: {} holds values that are NaN or infinite", id, name));
    }
  }
  return found;
}

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
  if (const auto schema = file.attribute("/", "schema")) found.facts["schema"] = *schema;
  found.facts["members"] = file.members("/");
  if (!file.has("/layers")) return found;
  found.facts["layers"] = file.members("/layers");
  if (!file.has("/manifest")) return found;  // in a set's folder: the manifest lies beside it
  try {
    (void)read_set_file(path, SetFileKind::kH5);
  } catch (const DataError& error) {
    found.problems.push_back(error.what() + std::string(error.where().empty() ? "" : " (" + error.where() + ")"));
  }
  return found;
}

/// What is read with the rest of a model, and not by itself.
bool belongs_to_model(const std::string& name) {
  return name == "config.json" || name == "generation_config.json" || name == "tokenizer_config.json" ||
         name == "model.safetensors.index.json";
}

/// Any document of ours (schemas/), or a tokenizer.json.
Inspection inspect_json(const std::filesystem::path& path) {
  const Json document = read_json(path);
  if (document.is_object() && document.contains("model") && document["model"].is_object() &&
      document["model"].contains("vocab")) {
    return {"tokenizer",
            {{"type", document["model"].value("type", Json())}, {"vocabulary", document["model"]["vocab"].size()}},
            {}};
  }
  if (belongs_to_model(path.filename().string())) {
    throw DataError("this file is read as part of a model folder", path.string(), "give the folder that it lies in");
  }
  const Json schema = member(document, "schema");
  if (!schema.is_string() || schema_source(schema.get<std::string>()).empty()) {
    throw DataError("a JSON file, but not one that oscar writes or reads", path.string(),
                    "give the folder that it belongs to, or another file");
  }
  validate_json(document, schema.get<std::string>(), path.string());
  return {"document of schema " + schema.get<std::string>(), {{"members", document.size()}}, {}};
}

/// Header, metadata and tensor table; the payload is not decoded.
Inspection inspect_gguf(const std::filesystem::path& path) {
  const GgufFile file(path);
  const auto count = [&](const char* end) {
    return std::ranges::count_if(file.tensors(), [&](const GgufTensor& tensor) { return tensor.name.ends_with(end); });
  };
  Inspection found{"GGUF file",
                   {{"version", file.version()},
                    {"architecture", file.text("general.architecture").value_or("unknown")},
                    {"tensors", file.tensors().size()},
                    {"metadata_entries", file.entries().size()},
                    {"key_rotations", count("attn_k_rot.weight")},
                    {"value_rotations", count("attn_v_rot.weight")}},
                   {}};
  try {
    ModelConfig config = read_model_config(path);
    config.identity.weights_sha256 = weights_sha256(config, *open_checkpoint(path));
    found.facts["identity"] = to_json(config.identity);
  } catch (const DataError&) {  // a part of a model, or one that is not supported, is a sound file all the same
  }
  return found;
}

Inspection inspect_file(const fs::path& path) {
  const std::uint64_t size = file_size(path);
  std::array<char, 9> head{};
  read_at(path, 0, std::as_writable_bytes(std::span(head).first(std::min<std::uint64_t>(size, head.size()))));
  const std::string_view magic(head.data(), std::min<std::uint64_t>(size, head.size()));
  if (size == 0) throw DataError("the file is empty", path.string(), "write or fetch it again");
  if (magic.starts_with("PK\x03\x04")) return inspect_pt(path);
  if (magic.starts_with("\x93NUMPY")) return inspect_tensor("NumPy file", read_npy(path));
  if (magic.starts_with("\x89HDF\r\n\x1a\n")) return inspect_hdf5(path);
  if (magic.starts_with("GGUF")) return inspect_gguf(path);
  if (magic.size() == 9 && magic[8] == '{') return inspect_safetensors(path);  // after a 64-bit length
  if (magic[0] == '{') return inspect_json(path);
  throw DataError("the first bytes of the file are those of no format that oscar knows", path.string(), kKnown);
}

/// "###### 3.19": a mark for each quarter of a bit.
std::string bar(const Json& bits) {
  const auto marks = static_cast<std::size_t>(std::lround(4 * bits.get<double>()));
  return std::string(marks, '#') + fmt::format(" {:.2f}", bits.get<double>());
}

/// Ascending numbers as "0-3,7".
std::string ranges(const Json& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() &&
           numbers[last + 1].get<std::int64_t>() == numbers[last].get<std::int64_t>() + 1) {
      ++last;
    }
    text += (text.empty() ? "" : ",") + numbers[i].dump() + (last > i ? "-" + numbers[last].dump() : "");
    i = last + 1;
  }
  return text;
}

std::string value_text(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  if (name == "layers" && std::ranges::all_of(value, [](const Json& v) { return v.is_number_integer(); })) {
    return ranges(value);
  }
  if (!value.is_structured()) return value.dump();
  if (value.contains("key_bits")) {
    return fmt::format("keys {:<26} values {}", bar(value["key_bits"]), bar(value["value_bits"]));
  }
  std::string text;
  for (const auto& [key, part] : value.items()) {
    text += (text.empty() ? "" : ", ") + (value.is_object() ? key + " " : "") + value_text("", part);
  }
  return text.empty() ? "none" : text;
}

/// One fact a line, values under each other; an object that holds more than plain values becomes an indented block.
void append_facts(const Json& facts, const std::string& indent, std::string& text) {
  const auto is_block = [](const Json& value) {
    return value.is_object() && std::ranges::any_of(value, [](const Json& v) { return v.is_structured(); });
  };
  std::size_t width = 0;
  for (const auto& [name, value] : facts.items()) {
    if (!is_block(value)) width = std::max(width, name.size());
  }
  for (const auto& [name, value] : facts.items()) {
    if (is_block(value)) {
      text += indent + printable_line(name) + "\n";
      append_facts(value, indent + "  ", text);
      continue;
    }
    std::string label = name;
    std::ranges::replace(label, '_', ' ');
    text += indent + printable_line(label) + std::string(width - name.size() + 2, ' ') +
            printable_line(value_text(name, value)) + "\n";
  }
}

}  // namespace

Inspection inspect_statistics(const std::filesystem::path& path) {
  const Statistics statistics = read_statistics({path});
  const LayerStatistics& layer = statistics.layers.front();
  Json layers = Json::array(), sums = Json::array();
  for (const LayerStatistics& each : statistics.layers) layers.push_back(each.layer_id);
  for (const auto& [moment, moments] : layer.first.sums) sums.push_back(name_of(moment));
  if (layer.first.fisher) sums.push_back("fisher");
  if (layer.first.keys) sums.push_back("keys");
  if (layer.sst) sums.push_back("sst");
  const CalibrationData data = calibration_of(statistics.data);
  Json facts{
      {"model", statistics.model.id}, {"layers", layers}, {"parts", statistics.data.size()}, {"tokens", data.tokens}};
  if (data.image_tokens > 0) facts["image_tokens"] = data.image_tokens;
  facts["sums"] = sums;
  if (const HeadRange& heads = statistics.heads; !heads.whole()) {
    facts["kv_heads"] = fmt::format("{} to {} of {}", heads.first, heads.first + heads.count - 1, heads.total);
  }
  const bool all_ranks = fs::is_directory(path), theirs = path.extension() == ".pt" || all_ranks;
  Inspection found{theirs ? "moments of a server's calibration" : "statistics (oscar.statistics.v1)", facts, {}};
  if (all_ranks && !statistics.heads.whole()) found.problems.emplace_back("moments of some ranks are missing");
  return found;
}

std::vector<Check> structure_of(const verify::Subject& subject, const verify::Expectation& expected) {
  std::vector<Check> checks;
  verify::check_shared(subject, expected, checks);
  subject.check_own(checks);
  return checks;
}

std::vector<std::string> problems_of(const std::vector<Check>& checks) {
  std::vector<std::string> problems;
  for (const Check& check : checks) {
    // Few tokens make a poor set, and not a damaged one.
    if (check.ok != false || check.name == "spectrum_rank") continue;
    problems.push_back((check.layer ? "layer " + std::to_string(*check.layer) + ": " : "") + check.message);
  }
  return problems;
}

Inspection inspect_pt(const std::filesystem::path& path) {
  if (path.filename().string().starts_with(kRowsOfRank)) return inspect_server_file(path);  // which may be large
  const PtValue archive = read_pt(path);
  if (is_server_file(archive)) return inspect_server_file(path);
  if (const auto* tensor = archive.get_if<Tensor>()) return inspect_tensor("tensor file (.pt)", *tensor);
  if (archive.find("format_version") != nullptr && archive.find("layers") != nullptr) {
    return inspect_rotations(path);
  }
  Json keys = Json::array();
  if (const auto* dict = archive.get_if<PtDict>()) {
    for (const auto& [key, value] : *dict) {
      if (const auto* text = key.get_if<std::string>()) keys.push_back(*text);
      if (const auto* number = key.get_if<std::int64_t>()) keys.push_back(*number);
    }
  }
  return {"PyTorch archive (.pt), not a rotation file", {{"keys", keys}}, {}};
}

Inspection inspect(const fs::path& path) {
  const fs::file_status status = fs::status(path);
  if (!fs::exists(status)) throw DataError("there is no such file or folder", path.string(), "check the path");
  return fs::is_directory(status) ? inspect_folder(path) : inspect_file(path);
}

void require_sound(const Inspection& found, const fs::path& path) {
  if (found.problems.empty()) return;
  const bool set = found.kind == "set";
  throw DataError("not sound: " + found.problems.front(), path.string(),
                  set ? "fit all layers, or fetch it again; what its manifest does not list has to leave"
                      : "write or fetch it again");
}

void require_sound_set(const fs::path& folder) { require_sound(inspect(folder), folder); }

Json to_json(const Inspection& inspection, const fs::path& path) {
  return {{"path", path.string()},
          {"kind", inspection.kind},
          {"sound", inspection.problems.empty()},
          {"problems", inspection.problems},
          {"facts", inspection.facts}};
}

std::string to_text(const Inspection& inspection, const fs::path& path) {
  std::string text = path.string() + ": " + inspection.kind + "\n";
  append_facts(inspection.facts, "  ", text);
  for (const std::string& problem : inspection.problems) text += "  problem: " + printable_line(problem) + "\n";
  return text + (inspection.problems.empty() ? "  sound\n" : "  not sound\n");
}

}  // namespace oscar
