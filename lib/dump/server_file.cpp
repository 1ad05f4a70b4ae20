// SPDX-License-Identifier: MIT
#include "dump/server_file.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

constexpr int kMostLayers = 100'000;

}  // namespace

bool is_server_file(const PtValue& archive) {
  return member_of<std::int64_t>(&archive, "tp_rank") != nullptr && member_of<PtDict>(&archive, "layers") != nullptr;
}

ServerFile::ServerFile(const std::filesystem::path& path_) : path(path_.string()), content(locate_pt(path_)) {
  if (!is_server_file(content)) refuse("this is no file of a server's calibration");
  has_rows = content.find("q_sample_stride") != nullptr;
  const int version = number(content, "format_version", 1);
  if (version != (has_rows ? 1 : 2)) refuse("format version " + std::to_string(version) + " is not known");
  rank = number(content, "tp_rank", 0), ranks = number(content, "tp_size", 1);
  kv_heads = number(content, "local_kv_heads", 1), value_dim = number(content, "v_head_dim", 1);
  data = {.data_sha256 = sha256_hex(text("prompt_sha256")), .tokens = number(content, "tokens", 1), .blocks = {}};
  constexpr int kMostStride = 256;  // rows with all queries take so many times the file's bytes at most
  if (has_rows) stride = number(content, "q_sample_stride", 1);
  if (stride > kMostStride) refuse("\"q_sample_stride\" is above " + std::to_string(kMostStride));
  model = {.id = text("model_path"),
           .revision = text("model_revision"),
           .num_attention_heads = number(content, "global_q_heads", 1),
           .num_key_value_heads = number(content, "global_kv_heads", 1),
           .head_dim = number(content, "head_dim", 1)};
  if (const fs::path folder(model.id); folder.is_absolute()) model.id = (folder / "").parent_path().filename();
  if (value_dim != model.head_dim) model.value_dim = value_dim;
  group = model.num_attention_heads / model.num_key_value_heads;
  if (rank >= ranks || std::int64_t{kv_heads} * ranks != model.num_key_value_heads ||
      group * model.num_key_value_heads != model.num_attention_heads) {
    refuse("ranks, KV heads and query heads do not fit together");
  }
  for (const auto& [key, layer] : *content.find("layers")->get_if<PtDict>()) {
    const auto* const id = key.get_if<std::int64_t>();
    if (id == nullptr || *id < 0 || *id >= kMostLayers) refuse("a layer has no number, or one beyond all models");
    layer_ids.push_back(static_cast<int>(*id));
    if (number(layer, "count", 1) != data.tokens) refuse("layers count other tokens than the file");
    const auto* const seen = member_of<TensorLocation>(&layer, has_rows ? "q_samples" : "rho");
    if (seen == nullptr || seen->shape.size() != 3 || seen->shape[1] == (has_rows ? kv_heads * group : group)) continue;
    refuse("ranks shared KV heads, and each saw a part of the queries that read them",
           "let a server with no more ranks than KV heads calibrate");
  }
  if (layer_ids.empty()) refuse("there are no layers");
  std::ranges::sort(layer_ids);
  model.num_layers = layer_ids.back() + 1;
  if (std::ssize(layer_ids) < model.num_layers) model.cache_layers = layer_ids;  // others have no cache of this kind
  if (has_rows) take_manifest();
}

void ServerFile::take_manifest() {
  const auto* const told = member_of<std::string>(&content, "manifest");
  if (told == nullptr) return;
  const std::string where = path + ": manifest";
  const Json manifest = parse_json(*told, where);
  validate_json(manifest, "oscar.dump.v1", where);
  const ModelIdentity known = std::exchange(model, model_identity_from_json(manifest["model"]));
  const CalibrationData whole = calibration_data_from_json(manifest["calibration"]);
  const auto same = [&](auto number) { return model.*number == known.*number; };
  if (!same(&ModelIdentity::num_attention_heads) || !same(&ModelIdentity::num_key_value_heads) ||
      !same(&ModelIdentity::head_dim) || !same(&ModelIdentity::value_dim) || model.num_layers < known.num_layers ||
      whole.tokens != data.tokens) {
    refuse("the manifest tells other heads, layers or tokens than the file has");
  }
  data.blocks = whole.blocks;
  data.image_tokens = whole.image_tokens;
}

void ServerFile::refuse(const std::string& what, const char* remedy) const {
  throw DataError(what, path, remedy != nullptr ? remedy : "copy it again, or let the server calibrate again");
}

int ServerFile::number(const PtValue& dict, const char* name, int least) const {
  const auto* const found = member_of<std::int64_t>(&dict, name);
  constexpr std::int64_t kMost = 1 << 28;
  if (found == nullptr || *found < least || *found > kMost) refuse(std::string("\"") + name + "\" is no such number");
  return static_cast<int>(*found);
}

std::string ServerFile::text(const char* name) const {
  const auto* const found = member_of<std::string>(&content, name);
  return found == nullptr ? "" : plain_text(*found, name, path);
}

Tensor ServerFile::tensor(int layer_id, const char* name, const std::vector<std::int64_t>& shape) const {
  const auto* const place = member_of<TensorLocation>(content.find("layers")->find(layer_id), name);
  const std::string whose = std::string("\"") + name + "\" of layer " + std::to_string(layer_id);
  if (place == nullptr) refuse("there is no " + whose);
  if (!shape.empty() && place->shape != shape) {
    refuse(whose + " has shape " + shape_text(place->shape) + ", not " + shape_text(shape));
  }
  Tensor out(place->dtype, place->shape);
  read_at(fs::path(path), place->offset, out.data);
  return out;
}

double ServerFile::query_scale(int layer_id) const {
  const auto* const scaling = member_of<double>(content.find("layers")->find(layer_id), "q_scaling");
  const double scale = scaling == nullptr ? 1 : *scaling * std::sqrt(model.head_dim);
  if (!(scale > 0 && std::isfinite(scale))) refuse("q_scaling is no scale of scores");
  return std::abs(scale - 1) < 1e-6 ? 1 : scale;
}

}  // namespace oscar
