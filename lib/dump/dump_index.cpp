// SPDX-License-Identifier: MIT
#include "dump/dump_index.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "tensor/hdf5.hpp"
#include "tensor/pt.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

constexpr std::uint64_t kPages = 16, kPageBytes = 4096;
constexpr std::uint64_t kFrameBytes = std::uint64_t{64} << 10;  // of what stands before, and behind, a payload
constexpr char kRemedy[] =
    "dump again, or bring the file back that was there; without manifest.json the files count as a server's dump";

std::uint64_t payload_bytes(const TensorLocation& place) {
  return static_cast<std::uint64_t>(num_elements(place.shape)) * size_of(place.dtype);
}

std::string words(const TensorLocation& place) {
  return std::string(name_of(place.dtype)) + " " + shape_text(place.shape) + " at byte " + std::to_string(place.offset);
}

/// Hashes pages that are spread evenly over the payload, the first and the last among them.
std::string hash_of_pages(std::span<const std::byte> payload) {
  Sha256 hash;
  const std::uint64_t page = std::min<std::uint64_t>(kPageBytes, payload.size()), last = payload.size() - page;
  for (std::uint64_t i = 0; i < kPages; ++i) hash.update(payload.subspan(last / (kPages - 1) * i, page));
  hash.update(payload.subspan(last, page));
  return hash.hex();
}

/// Hashes what stands around the payload, where archives keep a checksum of it, and the role of the file in the dump.
std::string hash_of_frame(std::span<const std::byte> file, const TensorLocation& place, const std::string& role) {
  const std::uint64_t end = place.offset + payload_bytes(place);
  Sha256 hash;
  hash.update(std::as_bytes(std::span(role)));
  hash.update(file.first(std::min(place.offset, kFrameBytes)));
  hash.update(file.last(std::min(file.size() - end, kFrameBytes)));
  return hash.hex();
}

bool holds(std::uint64_t file_bytes, const TensorLocation& place) {
  const std::uint64_t bytes = payload_bytes(place);
  return bytes <= file_bytes && place.offset <= file_bytes - bytes;
}

[[noreturn]] void refuse_changed(const ChunkTensor& tensor, std::uint64_t size) {
  const std::uint64_t recorded = tensor.record["size"];
  const std::string sizes = std::to_string(recorded) + " to " + std::to_string(size) + " bytes";
  const std::string what = size == recorded  ? "its content is another"
                           : size < recorded ? "it was truncated from " + sizes
                                             : "it grew from " + sizes;
  throw DataError("the file changed after the dump's manifest was written: " + what, tensor.file.string(), kRemedy);
}

/// Throws DataError unless the file's own header says what the manifest says.
void require_header(const ChunkTensor& tensor, const char* what) {
  TensorLocation found;
  try {
    found = locate_chunk(tensor.file, what);
  } catch (const DataError&) {
    refuse_changed(tensor, regular_file_size(tensor.file));
  }
  const TensorLocation& listed = tensor.location;
  if (found.dtype == listed.dtype && found.shape == listed.shape && found.offset == listed.offset) return;
  throw DataError("the file has " + words(found) + ", the dump's manifest says " + words(listed), tensor.file.string(),
                  kRemedy);
}

Tensor read_chunk(const std::filesystem::path& file, const std::string& what) {
  if (file.extension() == ".h5") return Hdf5Reader(file, Hdf5Source::kOwn).read("/" + what);
  if (file.extension() == ".safetensors") return SafetensorsFile(file).load(what);
  return read_pt_tensor(file);
}

/// Looks at a file on disk, in time that does not grow with it. Throws DataError, which names what differs, unless its
/// size, its header, what follows its payload, and 16 pages of the payload are those recorded.
void require_recorded(const ChunkTensor& tensor, const std::string& role, const char* what) {
  const MappedFile file(tensor.file);
  const auto bytes = file.bytes();
  if (tensor.record["size"] == bytes.size() && holds(bytes.size(), tensor.location) &&
      tensor.record["frame_sha256"] == hash_of_frame(bytes, tensor.location, role) &&
      tensor.record["sample_sha256"] ==
          hash_of_pages(bytes.subspan(tensor.location.offset, payload_bytes(tensor.location)))) {
    return;
  }
  require_header(tensor, what);
  refuse_changed(tensor, bytes.size());
}

void require_recorded_small_file(const fs::path& file, const Json& record) {
  if (record != record_small_file(file)) refuse_changed({file, {}, record}, regular_file_size(file));
}

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
    fail("sequence lengths are below 1 or do not add up to " + plural(q[0], "token"), chunk.q.file);
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
    const fs::path lens = chunk_path(layer, "seq_lens", chunk.number, chunk.q.file.extension().string());
    for (const fs::path& file : {chunk.q.file, chunk.k.file, chunk.v.file, lens}) {
      if (!fs::exists(file)) fail("the dump's manifest lists this file, which is not there", file);
    }
    require_recorded(chunk.q, role_of(layer_id, chunk, "q"), "q");
    require_recorded(chunk.k, role_of(layer_id, chunk, "k"), "k");
    require_recorded(chunk.v, role_of(layer_id, chunk, "v"), "v");
    require_recorded_small_file(lens, entries[i]["files"]["seq_lens"]);
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

std::string chunk_suffix(std::string_view format) {
  const std::string suffix = "." + std::string(format);
  if (std::find(kChunkSuffixes.begin(), kChunkSuffixes.end(), suffix) != kChunkSuffixes.end()) return suffix;
  throw UsageError("unknown dump format \"" + std::string(format) + "\"", "--format", "use pt, h5 or safetensors");
}

TensorLocation locate_chunk(const std::filesystem::path& file, const std::string& what) {
  if (file.extension() == ".h5") return Hdf5Reader(file, Hdf5Source::kOwn).locate("/" + what);
  if (file.extension() == ".safetensors") return SafetensorsFile(file).locate(what);
  return locate_pt_tensor(file);
}

void write_chunk(const std::filesystem::path& file, const std::string& what, const Tensor& tensor) {
  if (file.extension() == ".h5") {
    Hdf5Writer writer(file);
    writer.write("/" + what, tensor);
    writer.commit();
  } else if (file.extension() == ".safetensors") {
    write_safetensors(file, {{what, tensor}}, {});
  } else {
    write_pt(file, {tensor});
  }
}

std::string role_of(int layer_id, const DumpChunk& chunk, const char* what) {
  std::string text = "layer " + std::to_string(layer_id) + " chunk " + std::to_string(chunk.number) + " " + what;
  for (const std::int64_t length : chunk.seq_lens) text += " " + std::to_string(length);
  return text;
}

Json record_file(const ChunkTensor& tensor, const std::string& role) {
  const MappedFile file(tensor.file);
  Sha256 whole;
  whole.update(file.bytes());
  const auto payload = file.bytes().subspan(tensor.location.offset, payload_bytes(tensor.location));
  return {{"size", file.bytes().size()},
          {"frame_sha256", hash_of_frame(file.bytes(), tensor.location, role)},
          {"sample_sha256", hash_of_pages(payload)},
          {"sha256", whole.hex()}};
}

Json record_small_file(const fs::path& file) {
  return {{"size", regular_file_size(file)}, {"sha256", sha256_file(file)}};
}

void require_unchanged(const ChunkTensor& tensor) {
  if (tensor.record.is_null() || tensor.record["sha256"] == sha256_file(tensor.file)) return;
  refuse_changed(tensor, regular_file_size(tensor.file));
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  if (!std::filesystem::is_directory(folder)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

std::optional<int> parse_entry_number(std::string_view digits, const std::filesystem::path& entry) {
  const auto number = parse_number(digits);
  if (!number || std::to_string(*number) == digits) return number;
  throw DataError("the number in this name has leading zeros", entry.string(),
                  "write it as " + std::to_string(*number) + ", or move the entry away");
}

std::vector<int> numbered_entries(const std::filesystem::path& folder, std::string_view prefix,
                                  std::string_view suffix) {
  std::vector<int> numbers;
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size()) continue;
    const auto middle = std::string_view(name).substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    if (const auto number = parse_entry_number(middle, folder / name)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace oscar
