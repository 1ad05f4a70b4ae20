// SPDX-License-Identifier: MIT
// GGUF files (versions 2 and 3, little-endian): metadata, named tensors, and copies of a file with some tensors added.
// Everything that a copy does not change is carried over byte for byte, also tensors of types that are not known here.
// Non-goals: quantising, big-endian files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.hpp"
#include "base/places.hpp"
#include "tensor/tensor.hpp"

namespace oscar {

/// One metadata entry. Its value is shown as bytes of the file.
struct GgufEntry {
  std::string key;
  std::uint32_t type = 0;
  std::span<const std::byte> value;
};

struct GgufTensor {
  std::string name;
  std::vector<std::uint64_t> dims;  // as stored: the innermost first
  std::uint32_t type = 0;           // ggml's number
  std::span<const std::byte>
      data;  // up to the next tensor, so padding may follow; at a server only a name of its bytes
};

class GgufFile {
 public:
  /// Opens a file by a path or an address. Throws DataError: missing, truncated, another version, a header that does
  /// not fit the file, names twice.
  explicit GgufFile(const std::filesystem::path& path);

  [[nodiscard]] std::uint32_t version() const noexcept { return version_; }
  [[nodiscard]] std::uint64_t alignment() const noexcept { return alignment_; }
  [[nodiscard]] const std::vector<GgufEntry>& entries() const noexcept { return entries_; }
  [[nodiscard]] const std::vector<GgufTensor>& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const GgufTensor* find(const std::string& name) const;
  /// Returns a metadata string; nullopt if absent or of another type.
  [[nodiscard]] std::optional<std::string> text(const std::string& key) const;
  /// Returns a metadata integer of 32 bits; nullopt if absent or of another type.
  [[nodiscard]] std::optional<std::uint32_t> number(const std::string& key) const;
  /// Returns a metadata value of any type; null if absent. Numbers of 32 bits are told by their shortest decimal form.
  /// Throws DataError for a list whose length is not true.
  [[nodiscard]] Json value(const std::string& key) const;
  [[nodiscard]] const PlacedFile& file() const noexcept { return *file_; }
  /// Returns where bytes of a tensor lie in the file.
  [[nodiscard]] std::uint64_t offset_of(std::span<const std::byte> data) const {
    return static_cast<std::uint64_t>(data.data() - file_->bytes().data());
  }
  /// F32, F16 or BF16, shape with the outermost dimension first. Throws DataError if absent or of another type.
  [[nodiscard]] Tensor read(const std::string& name) const;

 private:
  void check_tensors(std::uint64_t payload);

  std::string path_;
  std::unique_ptr<PlacedFile> file_;
  std::uint32_t version_ = 0;
  std::uint64_t alignment_ = 32;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::uint64_t> offsets_;  // of tensors_, in the payload
};

/// Writes atomically a copy of `source` with these float32 tensors and metadata strings; what has the same name is
/// replaced, everything else is kept.
void write_gguf_copy(const std::filesystem::path& path, const GgufFile& source,
                     const std::vector<std::pair<std::string, Tensor>>& tensors,
                     const std::vector<std::pair<std::string, std::string>>& texts);

}  // namespace oscar
