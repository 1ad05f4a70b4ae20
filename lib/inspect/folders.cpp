// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/status.hpp"
#include "dump/dump_index.hpp"
#include "dump/rank_source.hpp"
#include "dump/server_file.hpp"
#include "dump/source.hpp"
#include "inspect/inspect.hpp"
#include "model/weights/checkpoint.hpp"
#include "moments/sums.hpp"
#include "set/convert.hpp"
#include "set/manifest.hpp"
#include "set/set.hpp"
#include "tensor/safetensors.hpp"
#include "zoo/index.hpp"
#include "zoo/set_manifest.hpp"

namespace oscar {
namespace {

/// Entries directly in `folder` whose names start and end like this, sorted.
std::vector<fs::path> entries(const fs::path& folder, const std::string& start, const std::string& end) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(start) && name.ends_with(end)) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

/// Adds what is said of every dump. tokens: of each layer; chunks: of one; dtype: of its rows.
Inspection with_dump_facts(Inspection found, const std::vector<int>& layers, const std::vector<std::int64_t>& tokens,
                           std::int64_t chunks, std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim,
                           DType dtype) {
  found.facts.update({{"num_layers", layers.size()},
                      {"layers", layers},
                      {"tokens_per_layer", tokens.back()},
                      {"chunks", chunks},
                      {"query_heads", query_heads},
                      {"kv_heads", kv_heads},
                      {"head_dim", head_dim},
                      {"dtype", name_of(dtype)}});
  if (std::ranges::adjacent_find(tokens, std::ranges::not_equal_to()) != tokens.end()) {
    found.problems.emplace_back("layers differ in their number of tokens");
  }
  return found;
}

/// The ranks of a tensor-parallel server, merged: everything is read, since copies of key heads must be the same.
Inspection inspect_rank_dump(const fs::path& folder, const RankLayout& layout) {
  Status quiet;
  const auto source = open_dump(folder, {.max_tokens = 0}, quiet);
  std::int64_t chunks = 0;
  std::vector<std::int64_t> tokens;
  QkvChunk chunk;
  for (const int layer : source->layer_ids()) {
    tokens.push_back(0), chunks = 0;
    const auto stream = source->open(layer);
    while (stream->next(chunk)) {
      throw_if_interrupted();
      require_finite(chunk);
      tokens.back() += chunk.view.q.num_tokens, ++chunks;
    }
  }
  const HeadsView &q = chunk.view.q, &k = chunk.view.k;
  return with_dump_facts({"dump of the ranks of a tensor-parallel server", {{"ranks", layout.ranks}}, {}},
                         source->layer_ids(), tokens, chunks, q.num_heads, k.num_heads, q.head_dim, q.dtype);
}

/// Shapes, types, token counts, sizes and values of every chunk are checked, and hashes where a manifest has them.
Inspection inspect_dump(const fs::path& folder) {
  if (const RankLayout layout = find_ranks(folder); layout.ranks > 0) return inspect_rank_dump(folder, layout);
  const DumpIndex index(folder);
  Status quiet;
  std::int64_t chunks = 0;
  std::vector<std::int64_t> tokens;
  const std::vector<DumpChunk> first = index.chunks(index.layer_ids().front(), quiet);
  for (const int layer : index.layer_ids()) {
    tokens.push_back(0), chunks = 0;
    for (const DumpChunk& chunk : index.chunks(layer, quiet)) tokens.back() += chunk.tokens(), ++chunks;
  }
  const TensorLocation &q = first.front().q.location, &k = first.front().k.location;
  Inspection found{index.manifest().is_null() ? "dump (published layout)" : "dump", {}, {}};
  if (!index.manifest().is_null()) found.facts["model"] = index.manifest()["model"].value("id", Json());
  found =
      with_dump_facts(std::move(found), index.layer_ids(), tokens, chunks, q.shape[1], k.shape[1], q.shape[2], q.dtype);
  if (!found.problems.empty()) return found;
  const auto source = open_dump(folder, {.max_tokens = 0}, quiet);
  for (const int layer : source->layer_ids()) {
    for (const DumpChunk& chunk : index.chunks(layer, quiet)) {
      throw_if_interrupted();
      for (const ChunkTensor* tensor : {&chunk.q, &chunk.k, &chunk.v}) require_unchanged(*tensor);
    }
    QkvChunk chunk;
    for (const auto stream = source->open(layer); stream->next(chunk);) {  // what was read just now
      throw_if_interrupted();
      require_finite(chunk);
    }
  }
  return found;
}

Inspection inspect_model(const fs::path& folder) {
  ModelConfig config = read_model_config(folder);
  std::int64_t parameters = 0;
  const std::vector<fs::path> shards = entries(folder, "", ".safetensors");
  Inspection found{"model", {}, {}};
  try {
    for (const fs::path& shard : shards) {
      const SafetensorsFile file(shard);
      for (const auto& [name, tensor] : file.tensors()) parameters += num_elements(tensor.shape);
    }
    if (!shards.empty()) {
      const std::unique_ptr<const Checkpoint> weights = open_checkpoint(folder);
      settle_layouts(config, *weights);
      check_weights(config, *weights, folder.string());
      config.identity.weights_sha256 = weights_sha256(config, *weights);
    }
    if (const fs::path tokenizer = folder / "tokenizer.json"; fs::exists(tokenizer)) (void)read_json(tokenizer);
  } catch (const DataError& error) {  // config.json tells what model it is all the same
    found.problems.push_back(error.where() + ": " + error.what());
  }
  found.facts = {{"architecture", config.model_type},
                 {"num_layers", config.num_layers},
                 {"query_heads", config.num_attention_heads},
                 {"kv_heads", config.num_key_value_heads},
                 {"head_dim", config.head_dim},
                 {"vocabulary", config.vocab_size},
                 {"context", config.max_position_embeddings},
                 {"dtype", config.torch_dtype},
                 {"parameters", parameters},
                 {"shards", shards.size()},
                 {"tokenizer", fs::exists(folder / "tokenizer.json") || fs::exists(folder / "tokenizer.model")}};
  found.facts["identity"] = to_json(config.identity);
  if (shards.empty()) found.problems.emplace_back("no .safetensors file");
  return found;
}

/// The two sides of a set as bare files; problems carry the name of their file.
Inspection inspect_sides(const fs::path& folder) {
  Inspection found{"rotation files (.pt)", {}, {}};
  Json layers;
  for (const char* side : {"k", "v"}) {
    const std::vector<fs::path> files = entries(folder, std::string(side) + "_rotation", ".pt");
    if (files.empty()) found.problems.push_back(std::string("no ") + side + "_rotation*.pt");
    for (const fs::path& file : files) {
      const std::string name = file.filename().string();
      const Inspection one = inspect_pt(file);
      for (const std::string& problem : one.problems) found.problems.push_back(name + ": " + problem);
      found.facts[name] = one.facts;
      const Json own = one.facts.value("layers", Json());
      if (!layers.is_null() && own != layers) found.problems.push_back(name + ": other layers than the other side");
      layers = own;
    }
  }
  return found;
}

Json facts_of_coded(const Json& part) {
  Json facts{{"bits", {{"taken", part["codec"]["bits"]}, {"scope", part["codec"]["scope"]}}}};
  if (part.contains("rotary")) facts["keys"] = "before RoPE";
  for (const Json& layer : part["layers"]) {
    facts[fmt::format("layer {}", layer["layer_id"].get<int>())] = {{"key_bits", layer["key"]["bits"]},
                                                                    {"value_bits", layer["value"]["bits"]}};
  }
  return facts;
}

Json facts_of_rotations(const Json& part) {
  return {{"recipe", part["recipe"]["name"]},
          {"objectives", part["objectives"]},
          {"num_layers", part["layers"].size()},
          {"codec", part["codec"]["name"]},
          {"group_size", part["codec"]["group_size"]}};
}

/// By reader: its part, and what its maker's verify said of it.
Json facts_of_readers(const Json& manifest) {
  Json facts = Json::object();
  const Json recorded = member(member(manifest, "verification"), "readers");
  for (const auto& [reader, part] : manifest["readers"].items()) {
    facts[reader] = {{"part", part}};
    if (recorded.contains(reader)) facts[reader]["verdict"] = recorded[reader]["verdict"];
  }
  return facts;
}

/// Every file that the manifest lists, by size and hash, and the parts by the checks that verify holds them to.
Inspection inspect_set(const fs::path& folder, const Json& manifest) {
  const std::optional<Verdict> verdict = recorded_verdict(manifest);
  Inspection found{"set", {}, {}};
  const Json& calibration = manifest["calibration"];
  found.facts["model"] = manifest["model"]["id"];
  if (calibration["tokens"] != 0) found.facts["calibration_tokens"] = calibration["tokens"];  // 0: nobody knows
  found.facts.update({{"windows", manifest["windows"]},
                      {"written_by", "oscar " + manifest["oscar_version"].get<std::string>()},
                      {"verdict", verdict ? name_of(*verdict) : "not verified"}});
  if (calibration.contains("image_tokens")) found.facts["calibration_image_tokens"] = calibration["image_tokens"];
  if (verdict) found.facts["verdict_by"] = "its maker's oscar verify";
  found.facts["readers"] = facts_of_readers(manifest);
  for (const auto& [name, part] : manifest["parts"].items()) {
    found.facts["parts"][name] = name == kCodedName ? facts_of_coded(part) : facts_of_rotations(part);
  }
  std::vector<Check> checks;
  verify::check_file_hashes(folder, checks);
  found.problems = problems_of(checks);
  if (!found.problems.empty()) return found;
  try {
    const verify::SetUnderTest set = verify::open_set(folder);
    found.problems = set.contradictions;
    for (const auto& part : set.parts) {
      const auto problems = problems_of(structure_of(*part, {.model = set.model, .origin = "the manifest"}));
      for (const std::string& problem : problems) found.problems.push_back(part->name + ": " + problem);
    }
  } catch (const DataError& error) {
    found.problems.emplace_back(error.what());
  }
  return found;
}

Inspection inspect_latent_rotations(const fs::path& folder) {
  const RotationPart set = read_any_set(folder).rotations.at(kRotationsName);
  Inspection found{"rotation files of an MLA model (.pt)", {}, {}};
  Json layers = Json::array();
  for (const LayerRotation& layer : set.layers) layers.push_back(layer.layer_id);
  const auto count = [&](auto has) {
    return std::ranges::count_if(set.layers, [&](const auto& l) { return has(l.key); });
  };
  found.facts = {{"num_layers", set.layers.size()},
                 {"layers", layers},
                 {"latent_dim", set.layers.front().key.rotation.dim},
                 {"layers_with_query_rotation", count([](const auto& s) { return s.read_rotation.count > 0; })},
                 {"layers_with_mean", count([](const auto& s) { return !s.mean.empty(); })}};
  return found;
}

/// Every set is held to what inspect_set() holds it to, and to the manifest and the signatures that were published.
Inspection inspect_zoo(const fs::path& folder) {
  const fs::path file = folder / kIndexName;
  Inspection found{"zoo", {{"sets", Json::array()}}, {}};
  for (const ZooEntry& entry : ZooIndex(read_text(file), file.string()).entries()) {
    const std::string name = entry.model + ":" + entry.tag;
    const auto problem = [&](const std::string& what) { found.problems.push_back(name + ": " + what); };
    found.facts["sets"].push_back(name);
    const fs::path set = folder / entry.path, signature = set / kSignatureName;
    try {
      const SetManifest manifest = read_set_manifest(set);
      if (manifest.sha256 != entry.manifest_sha256)
        problem(entry.path + "/manifest.json is not the one that was published");
      std::ranges::for_each(inspect_set(set, manifest.document).problems, problem);
      if (fs::exists(signature)) (void)check_signatures(manifest.text, read_text(signature), signature.string());
    } catch (const Error& error) {
      problem(error.where() + ": " + error.what());
    }
  }
  return found;
}

}  // namespace

Inspection inspect_folder(const fs::path& folder) {
  if (fs::exists(folder / "manifest.json")) {
    const Json manifest = read_json(folder / "manifest.json");
    if (member(manifest, "schema") == "oscar.dump.v1") return inspect_dump(folder);
    validate_json(manifest, kSetSchema, (folder / "manifest.json").string());
    return inspect_set(folder, manifest);
  }
  if (fs::exists(folder / "index.json")) return inspect_zoo(folder);
  if (fs::exists(folder / "config.json")) return inspect_model(folder);
  const auto latent = entries(folder, "layer_", ".pt");
  if (!latent.empty() && latent.front().filename().string().find("_rank") == std::string::npos) {
    return inspect_latent_rotations(folder);
  }
  if (!entries(folder, "layer_", "").empty()) return inspect_dump(folder);
  std::vector<Inspection> found;  // all that a server leaves in one folder
  if (!entries(folder, "k_rotation", ".pt").empty() || !entries(folder, "v_rotation", ".pt").empty()) {
    found.push_back(inspect_sides(folder));
  }
  if (!entries(folder, kMomentsOfRank, ".pt").empty()) found.push_back(inspect_statistics(folder));
  if (!entries(folder, kRowsOfRank, ".pt").empty()) found.push_back(inspect_dump(folder));
  for (std::size_t i = 1; i < found.size(); ++i) {
    found.front().facts[found[i].kind] = found[i].facts;
    for (const std::string& problem : found[i].problems) found.front().problems.push_back(problem);
  }
  if (!found.empty()) return found.front();
  throw DataError("the folder holds nothing that oscar knows", folder.string(),
                  "give a dump, a set, a model folder or a zoo");
}

}  // namespace oscar
