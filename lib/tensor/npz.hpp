// SPDX-License-Identifier: MIT
// NumPy .npz archives: zip files of .npy files, stored as they are (numpy.savez). Other members are plain bytes, which
// numpy.load gives back too. Non-goals: compressed members (numpy.savez_compressed), archives of 4 GB and more.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/files.hpp"
#include "tensor/tensor.hpp"

namespace oscar {

class NpzFile {
 public:
  /// Opens a .npz file. Throws DataError: missing, truncated, no zip archive, compressed, members that lie outside the
  /// file.
  explicit NpzFile(const std::filesystem::path& path);

  /// Name in the archive ("x.npy") -> its bytes.
  [[nodiscard]] const std::map<std::string, std::span<const std::byte>>& members() const noexcept { return members_; }
  [[nodiscard]] bool has(const std::string& array) const { return members_.contains(array + ".npy"); }
  /// Reads an array. Throws DataError if it is missing, damaged or of a foreign type.
  [[nodiscard]] Tensor read(const std::string& array) const;

 private:
  std::string path_;
  MappedFile file_;
  std::map<std::string, std::span<const std::byte>> members_;
};

/// Writes atomically: arrays under their names, texts as members of their own (their names must not end in ".npy").
void write_npz(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& arrays,
               const std::vector<std::pair<std::string, std::string>>& texts);

}  // namespace oscar
