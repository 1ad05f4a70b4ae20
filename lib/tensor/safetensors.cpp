// SPDX-License-Identifier: MIT
#include "tensor/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string_view>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"

namespace oscar {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kChecksums = "sha256";  // of the metadata

[[noreturn]] void refuse_safetensors(const std::string& what, const std::string& where) {
  throw DataError(what, where, "fetch or write the file again");
}

struct Range {
  std::uint64_t begin = 0, end = 0;
};

/// One entry of the header, checked by itself.
struct StoredTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  Range range;
};

StoredTensor parse_entry(const Json& json, const std::string& where) {
  const auto is_count = [](const Json& value) {
    return value.is_number_unsigned() && value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
  };
  const auto are_counts = [&](const char* key) {
    return json.contains(key) && json[key].is_array() && std::all_of(json[key].begin(), json[key].end(), is_count);
  };
  if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() || !are_counts("shape") ||
      !are_counts("data_offsets") || json["data_offsets"].size() != 2) {
    refuse_safetensors("the header entry lacks a proper dtype, shape or data_offsets", where);
  }
  return {json["dtype"].get<std::string>(),
          json["shape"].get<std::vector<std::int64_t>>(),
          {json["data_offsets"][0].get<std::uint64_t>(), json["data_offsets"][1].get<std::uint64_t>()}};
}

/// Ranges must follow each other without holes and end with the payload, so that no byte has two owners or none.
void check_coverage(std::vector<Range> ranges, std::uint64_t payload, const std::string& path) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  std::uint64_t expected = 0;
  for (const Range& range : ranges) {
    if (range.begin != expected) refuse_safetensors("tensors overlap or leave holes in the payload", path);
    expected = range.end;
  }
  if (expected != payload) {
    refuse_safetensors("the header describes " + std::to_string(expected) + " bytes of payload, the file has " +
                           std::to_string(payload),
                       path);
  }
}

TensorRef tensor_ref(const StoredTensor& entry, DType dtype, std::span<const std::byte> payload,
                     const std::string& where) {
  const std::uint64_t bytes = entry.range.end - entry.range.begin;
  const auto count = static_cast<std::uint64_t>(num_elements(entry.shape));
  if (count > bytes || count * size_of(dtype) != bytes) {
    refuse_safetensors(
        "shape " + shape_text(entry.shape) + " of " + entry.dtype + " does not fit " + std::to_string(bytes) + " bytes",
        where);
  }
  return {dtype, entry.shape, payload.subspan(entry.range.begin, bytes)};
}

std::string_view header_text(PlacedFile& place, const std::string& path) {
  std::uint64_t length = 0;
  const std::span<const std::byte> file = place.bytes();
  place.load_front(kLengthBytes);
  if (file.size() < kLengthBytes) refuse_safetensors("too short for a safetensors file", path);
  std::memcpy(&length, file.data(), sizeof length);
  constexpr std::string_view kPointer = "version https://git-lfs";
  if (std::string_view(reinterpret_cast<const char*>(file.data()), file.size()).starts_with(kPointer)) {
    throw DataError("a pointer of Git LFS, not the file itself", path, "run git lfs pull in its folder");
  }
  if (length > kMaxHeaderBytes)
    refuse_safetensors("not a safetensors file: header length " + std::to_string(length), path);
  if (length > file.size() - kLengthBytes) refuse_safetensors("truncated: the header is longer than the file", path);
  place.load_front(kLengthBytes + length);
  return {reinterpret_cast<const char*>(file.data()) + kLengthBytes, length};
}

std::string sha256_of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

/// Of all but the checksums.
std::string sha256_of(const std::map<std::string, std::string>& metadata) {
  std::string text;
  for (const auto& [name, value] : metadata) {
    if (name != kChecksums) text.append(name).append(1, '\0').append(value).append(1, '\0');
  }
  return sha256_hex(text);
}

}  // namespace

Tensor TensorRef::copy() const {
  Tensor tensor(dtype, shape);
  OSCAR_CHECK(tensor.data.size() == data.size());
  std::copy(data.begin(), data.end(), tensor.data.begin());
  return tensor;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path.string()), file_(open_place(path)) {
  const std::string_view text = header_text(*file_, path_);
  const std::span<const std::byte> payload = file_->bytes().subspan(kLengthBytes + text.size());
  const Json header = parse_json(text, path_);
  if (!header.is_object()) refuse_safetensors("the header is not a JSON object", path_);
  std::vector<Range> ranges;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) {
      for (const auto& [key, entry] : value.items()) metadata_[key] = entry.is_string() ? entry.get<std::string>() : "";
      continue;
    }
    const std::string where = path_ + ", tensor " + name;
    const StoredTensor entry = parse_entry(value, where);
    if (entry.range.begin > entry.range.end || entry.range.end > payload.size()) {
      refuse_safetensors("truncated: the tensor lies outside the file", where);
    }
    ranges.push_back(entry.range);
    if (const std::optional<DType> dtype = find_safetensors_dtype(entry.dtype)) {
      tensors_[name] = tensor_ref(entry, *dtype, payload, where);
    } else {
      unsupported_[name] = entry.dtype;
    }
  }
  check_coverage(std::move(ranges), payload.size(), path_);
  read_checksums();
}

void SafetensorsFile::read_checksums() {
  const auto found = metadata_.find(kChecksums);
  if (found == metadata_.end()) return;
  const Json json = parse_json(found->second, path_);
  const auto is_text = [](const Json& value) { return value.is_string(); };
  const bool fits = json.is_object() && json.contains("metadata") && json.contains("tensors") &&
                    json["tensors"].is_object() && json["tensors"].size() == tensors_.size() &&
                    std::all_of(json["tensors"].begin(), json["tensors"].end(), is_text);
  if (!fits) refuse_safetensors("the checksums are not those of its tensors", path_);
  if (json["metadata"] != sha256_of(metadata_)) refuse_safetensors("the metadata changed after it was written", path_);
  checksums_ = json["tensors"].get<std::map<std::string, std::string>>();
}

void SafetensorsFile::require_checksum(const std::string& name, std::span<const std::byte> bytes) const {
  if (checksums_.empty()) return;
  const auto found = checksums_.find(name);
  if (found != checksums_.end() && found->second == sha256_of(bytes)) return;
  refuse_safetensors("tensor " + name + " changed after it was written: its checksum is another", path_);
}

void SafetensorsFile::verify_all() const {
  for (const auto& [name, tensor] : tensors_) require_checksum(name, tensor.data);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  for (const auto& [name, dtype] : unsupported_) names.push_back(name);
  return names;
}

const TensorRef& SafetensorsFile::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  const auto unsupported = unsupported_.find(name);
  if (unsupported != unsupported_.end()) {
    throw DataError("tensor " + name + " has the element type " + unsupported->second + ", which is not supported",
                    path_, "use a checkpoint in bfloat16, float16 or float32");
  }
  throw DataError("there is no tensor " + name, path_, "check that this is the right file");
}

Tensor SafetensorsFile::load(const std::string& name) const {
  const TensorRef& stored = at(name);
  Tensor tensor(stored.dtype, stored.shape);
  OSCAR_CHECK(tensor.data.size() == stored.data.size());
  if (!tensor.data.empty()) file_->read(find(stored.data).value(), tensor.data);
  require_checksum(name, tensor.data);
  return tensor;
}

TensorLocation SafetensorsFile::locate(const std::string& name) const {
  const TensorRef& tensor = at(name);
  return {tensor.dtype, tensor.shape, static_cast<std::uint64_t>(tensor.data.data() - file_->bytes().data())};
}

std::optional<std::uint64_t> SafetensorsFile::find(std::span<const std::byte> bytes) const {
  const std::span<const std::byte> all = file_->bytes();
  const bool inside =
      !std::less()(bytes.data(), all.data()) && !std::less()(all.data() + all.size(), bytes.data() + bytes.size());
  if (!inside) return std::nullopt;
  return static_cast<std::uint64_t>(bytes.data() - all.data());
}

void write_safetensors(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata, Checksums checksums) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  if (checksums == Checksums::kYes) {
    Json hashes = Json::object();
    for (const auto& [name, tensor] : tensors) hashes[name] = sha256_of(tensor.data);
    header[kMetadata][kChecksums] = Json{{"metadata", sha256_of(metadata)}, {"tensors", std::move(hashes)}}.dump();
  }
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    OSCAR_CHECK(name != kMetadata && !header.contains(name));
    const std::uint64_t end = offset + tensor.data.size();
    header[name] = {{"dtype", safetensors_name_of(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"data_offsets", Json::array({offset, end})}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that payloads of mapped files are aligned
  const std::uint64_t length = text.size();
  std::string content(reinterpret_cast<const char*>(&length), sizeof length);
  content += text;
  for (const auto& [name, tensor] : tensors) {
    content.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  }
  write_file(path, content);
}

}  // namespace oscar
