// SPDX-License-Identifier: MIT
#include "dump/dump_index.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kTinyChunk = 16;  // a chunk 0 of at most so many tokens is a warm-up

fs::path chunk_path(const fs::path& layer, const char* what, int chunk, std::string_view suffix) {
  return layer / what / (std::to_string(chunk) + std::string(suffix));
}

[[noreturn]] void fail(const std::string& what, const fs::path& where) {
  throw DataError(what, where.string(), "dump this layer again");
}

void check_tensor(const ChunkTensor& tensor) {
  const TensorLocation& location = tensor.location;
  if (location.shape.size() != 3 || !is_activation_dtype(location.dtype)) {
    fail("expected [tokens, heads, head_dim] of float32, float16 or bfloat16, found " + shape_text(location.shape) +
             " of " + std::string(name_of(location.dtype)),
         tensor.file);
  }
  if (num_elements(location.shape) == 0) fail("the tensor is empty: " + shape_text(location.shape), tensor.file);
  const auto bytes = static_cast<std::uint64_t>(num_elements(location.shape)) * size_of(location.dtype);
  const std::uint64_t size = regular_file_size(tensor.file);
  if (bytes > size || location.offset > size - bytes) fail("the file is truncated", tensor.file);
}

void check_chunk(const DumpChunk& chunk) {
  for (const ChunkTensor* tensor : {&chunk.q, &chunk.k, &chunk.v}) check_tensor(*tensor);
  const auto& q = chunk.q.location.shape;
  const auto& k = chunk.k.location.shape;
  const auto& v = chunk.v.location.shape;
  const std::string shapes = "q " + shape_text(q) + ", k " + shape_text(k) + ", v " + shape_text(v);
  if (q[0] != k[0] || q[0] != v[0]) fail("q, k and v have different numbers of tokens: " + shapes, chunk.q.file);
  if (k[1] != v[1] || q[1] % k[1] != 0) fail("the heads do not divide into groups: " + shapes, chunk.q.file);
  if (q[2] != k[2]) fail("q and k have different head dimensions: " + shapes, chunk.q.file);
  const auto& lens = chunk.seq_lens;
  std::int64_t left = q[0];  // a sum could overflow
  const bool fit = std::all_of(lens.begin(), lens.end(), [&](std::int64_t n) { return n > 0 && (left -= n) >= 0; });
  if (!fit || left != 0) {
    fail("the sequence lengths do not add up to " + plural(q[0], "token"), chunk.q.file);
  }
}

/// All chunks of a layer have the heads of the first.
void check_layer(const std::vector<DumpChunk>& chunks) {
  for (const DumpChunk& chunk : chunks) {
    for (const auto member : {&DumpChunk::q, &DumpChunk::k, &DumpChunk::v}) {
      const auto& first = (chunks.front().*member).location.shape;
      const auto& here = (chunk.*member).location.shape;
      if (first[1] != here[1] || first[2] != here[2]) {
        fail("the shape " + shape_text(here) + " differs from " + shape_text(first) + " of the layer's first chunk",
             (chunk.*member).file);
      }
    }
  }
}

DumpChunk chunk_from_manifest(const Json& entry, const Json& manifest, const fs::path& layer) {
  const std::string suffix = chunk_suffix(manifest.at("format").get<std::string>());
  const Json& model = manifest.at("model");
  const std::int64_t tokens = entry.at("tokens"), dim = model.at("head_dim");
  const std::int64_t value_dim = model.value("value_dim", dim);
  const DType dtype = dtype_from_name(manifest.at("dtype").get<std::string>());
  DumpChunk chunk{.number = entry.at("chunk"), .q = {}, .k = {}, .v = {}, .seq_lens = {}};
  const auto place = [&](const char* what, const char* heads, std::int64_t size) {
    return ChunkTensor{chunk_path(layer, what, chunk.number, suffix),
                       {dtype, {tokens, model.at(heads), size}, entry.at("offsets").at(what)},
                       entry.at("files").at(what)};
  };
  chunk.q = place("q", "num_attention_heads", dim);
  chunk.k = place("k", "num_key_value_heads", dim);
  chunk.v = place("v", "num_key_value_heads", value_dim);
  chunk.seq_lens = entry.at("seq_lens").get<std::vector<std::int64_t>>();
  return chunk;
}

DumpChunk chunk_from_files(const fs::path& layer, int number, std::string_view suffix, bool has_lens, Status& status) {
  DumpChunk chunk{.number = number, .q = {}, .k = {}, .v = {}, .seq_lens = {}};
  const auto place = [&](const char* what) {
    const fs::path file = chunk_path(layer, what, number, suffix);
    return ChunkTensor{file, locate_chunk(file, what)};
  };
  chunk.q = place("q");
  chunk.k = place("k");
  chunk.v = place("v");
  const fs::path lens = chunk_path(layer, "seq_lens", number, suffix);
  if (has_lens) {
    chunk.seq_lens = read_chunk(lens, "seq_lens").to_int64();
  } else if (!chunk.q.location.shape.empty()) {
    status.notice(lens.string() + " is missing: the chunk counts as one sequence");
    chunk.seq_lens = {chunk.q.location.shape[0]};
  }
  return chunk;
}

/// The files are those that the manifest describes.
void check_files(int layer_id, const fs::path& layer, const std::vector<DumpChunk>& chunks, const Json& entries) {
  for (const char* const what : {"q", "k", "v", "seq_lens"}) {
    for (const std::string_view suffix : kChunkSuffixes) {
      for (const int number : numbered_entries(layer / what, "", suffix)) {
        const auto same = [&](const DumpChunk& chunk) {
          return chunk.number == number && chunk.q.file.extension() == suffix;
        };
        if (std::ranges::any_of(chunks, same)) continue;
        fail("the dump's manifest does not list this file", chunk_path(layer, what, number, suffix));
      }
    }
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const DumpChunk& chunk = chunks[i];
    require_recorded(chunk.q, role_of(layer_id, chunk, "q"), "q");
    require_recorded(chunk.k, role_of(layer_id, chunk, "k"), "k");
    require_recorded(chunk.v, role_of(layer_id, chunk, "v"), "v");
    require_recorded_small_file(chunk_path(layer, "seq_lens", chunk.number, chunk.q.file.extension().string()),
                                entries[i]["files"]["seq_lens"]);
  }
}

/// Ascending, each once.
void require_ascending(const Json& list, const char* id, const std::string& where) {
  for (std::size_t i = 1; i < list.size(); ++i) {
    const int before = list[i - 1][id], here = list[i][id];
    if (before >= here) {
      throw DataError(std::string(id) + " " + std::to_string(here) + " follows " + std::to_string(before), where,
                      "dump again");
    }
  }
}

}  // namespace

std::vector<int> chosen_layers(const std::vector<int>& all, std::vector<int> wanted, const fs::path& dump) {
  if (wanted.empty()) return all;
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  for (const int layer : wanted) {
    if (std::find(all.begin(), all.end(), layer) != all.end()) continue;
    throw UsageError("the dump has no layer " + std::to_string(layer), dump.string(),
                     "\"oscar inspect\" lists its layers");
  }
  return wanted;
}

DumpIndex::DumpIndex(std::vector<int> layer_ids, std::function<fs::path(int)> layer_folder)
    : layer_ids_(std::move(layer_ids)), layer_folder_(std::move(layer_folder)) {
  folder_ = layer_folder_(layer_ids_.front()).parent_path();
}

DumpIndex::DumpIndex(fs::path folder)
    : folder_(std::move(folder)),
      layer_folder_([this](int layer_id) { return folder_ / ("layer_" + std::to_string(layer_id)); }) {
  const fs::path manifest = folder_ / "manifest.json";
  if (!fs::is_directory(folder_)) throw DataError("no such folder", folder_.string(), "check --dump");
  layer_ids_ = numbered_entries(folder_, "layer_", "");
  if (layer_ids_.empty()) {
    throw DataError("no layer_<id> folders", folder_.string(), "name a folder that \"oscar dump\" or a server wrote");
  }
  if (fs::exists(manifest)) manifest_ = read_json(manifest);
  if (manifest_.is_null()) return;
  validate_json(manifest_, "oscar.dump.v1", manifest.string());
  require_ascending(manifest_["layers"], "layer_id", manifest.string());
  std::vector<int> listed;
  for (const Json& layer : manifest_["layers"]) {
    require_ascending(layer["chunks"], "chunk", manifest.string());
    listed.push_back(layer["layer_id"]);
  }
  for (const int id : layer_ids_) {
    if (!std::ranges::binary_search(listed, id))
      fail("the dump's manifest does not list this layer", layer_folder_(id));
  }
  layer_ids_ = std::move(listed);
  if (layer_ids_.empty()) throw DataError("the dump has no layers", manifest.string(), "dump again");
}

std::vector<DumpChunk> DumpIndex::chunks(int layer_id, Status& status) const {
  const fs::path layer = layer_folder_(layer_id);
  std::vector<DumpChunk> chunks;
  if (!manifest_.is_null()) {
    for (const Json& entry : manifest_["layers"]) {
      if (entry["layer_id"] != layer_id) continue;
      for (const Json& chunk : entry["chunks"]) chunks.push_back(chunk_from_manifest(chunk, manifest_, layer));
      check_files(layer_id, layer, chunks, entry["chunks"]);
    }
  } else {
    for (const std::string_view suffix : kChunkSuffixes) {
      const std::vector<int> numbers = numbered_entries(layer / "q", "", suffix);
      if (numbers.empty()) continue;
      const std::vector<int> lens = numbered_entries(layer / "seq_lens", "", suffix);
      for (const int number : numbers) {
        const bool has_lens = std::binary_search(lens.begin(), lens.end(), number);
        chunks.push_back(chunk_from_files(layer, number, suffix, has_lens, status));
      }
      if (!chunks.empty()) break;
    }
  }
  if (chunks.empty()) fail("the layer has no chunks", layer);
  for (const DumpChunk& chunk : chunks) check_chunk(chunk);
  if (manifest_.is_null() && chunks.size() > 1 && chunks.front().number == 0 && chunks.front().tokens() <= kTinyChunk) {
    status.notice("layer " + std::to_string(layer_id) + ": chunk 0 (" + plural(chunks.front().tokens(), "token") +
                  ") is a warm-up and is left out");
    chunks.erase(chunks.begin());
  }
  check_layer(chunks);
  return chunks;
}

}  // namespace oscar
