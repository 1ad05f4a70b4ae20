// SPDX-License-Identifier: MIT
// The safetensors format: u64 header length, JSON header, payload. Files are mapped; tensors are references into the
// map. Of files at a server (base/places.hpp) references are names only, which read() takes. A tensor of a type that
// DType lacks (F4 …) is an error only for those who ask for it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/places.hpp"
#include "tensor/tensor.hpp"

namespace oscar {

/// A tensor that lives in somebody else's memory.
struct TensorRef {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
  /// Returns an owning copy; not of a file at a server.
  [[nodiscard]] Tensor copy() const;
};

class SafetensorsFile {
 public:
  /// Opens a file by a path or an address. Throws DataError if it is missing, truncated, or its header does not fit its
  /// payload.
  explicit SafetensorsFile(const std::filesystem::path& path);

  [[nodiscard]] const std::map<std::string, TensorRef>& tensors() const noexcept { return tensors_; }
  /// Returns the names of all tensors, those of types that are not supported among them.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  /// Returns a tensor by its name. Throws DataError that names the file and the tensor.
  [[nodiscard]] const TensorRef& at(const std::string& name) const;
  /// Reads a tensor into memory, from wherever the file is. Throws DataError if its checksum is another.
  [[nodiscard]] Tensor load(const std::string& name) const;
  /// Whether the file has checksums (Checksums::kYes).
  [[nodiscard]] bool has_checksums() const noexcept { return !checksums_.empty(); }
  /// Compares all tensors on disk with their checksums. Throws DataError if one is not as it was written. Does nothing
  /// in a file without checksums.
  void verify_all() const;
  [[nodiscard]] TensorLocation locate(const std::string& name) const;
  /// Tells where bytes of a TensorRef of this file lie in it; nothing for bytes of something else.
  [[nodiscard]] std::optional<std::uint64_t> find(std::span<const std::byte> bytes) const;
  [[nodiscard]] const PlacedFile& file() const noexcept { return *file_; }

 private:
  void read_checksums();
  void require_checksum(const std::string& name, std::span<const std::byte> bytes) const;

  std::string path_;
  std::unique_ptr<PlacedFile> file_;
  std::map<std::string, TensorRef> tensors_;
  std::map<std::string, std::string> unsupported_;  // name -> element type
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::string> checksums_;  // by tensor
};

/// kYes: the metadata "sha256" is an object in JSON with the SHA-256 of each tensor's bytes ("tensors") and of the rest
/// of the metadata ("metadata": each name and each value, by name, with a zero byte behind it).
enum class Checksums { kNo, kYes };

/// Writes atomically, tensors in the order given.
void write_safetensors(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata, Checksums checksums = Checksums::kNo);

}  // namespace oscar
