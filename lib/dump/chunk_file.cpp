// SPDX-License-Identifier: MIT
#include "dump/chunk_file.hpp"

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

}  // namespace

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

Tensor read_chunk(const std::filesystem::path& file, const std::string& what) {
  if (file.extension() == ".h5") return Hdf5Reader(file, Hdf5Source::kOwn).read("/" + what);
  if (file.extension() == ".safetensors") return SafetensorsFile(file).load(what);
  return read_pt_tensor(file);
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

std::vector<int> numbered_entries(const std::filesystem::path& folder, std::string_view prefix,
                                  std::string_view suffix) {
  std::vector<int> numbers;
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size()) continue;
    const auto middle = std::string_view(name).substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    if (const auto number = parse_number(middle)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace oscar
