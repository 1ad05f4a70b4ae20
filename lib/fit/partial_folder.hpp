// SPDX-License-Identifier: MIT
// What was taken of layers, until the whole is written: a folder with one file each, which work that ends early leaves
// to the next.
#pragma once

#include <filesystem>

#include "base/json.hpp"
#include "base/status.hpp"

namespace oscar {

/// Each file is whole or absent, and has checksums (tensor/safetensors.hpp); all of them are of one piece of work,
/// which the folder names.
class PartialFolder {
 public:
  /// Member of `of` with a fingerprint for each layer, which only layers that are there already must share: another may
  /// have been mended since.
  static constexpr const char* kDataOfLayers = "data_of_layers";

  /// `of`: all that decides what is taken. Of a folder that is there already the layers are used, which must be of this
  /// work; those that are damaged are removed, and `status` hears of it. Throws DataError if they are of other work, or
  /// if the folder holds something else.
  PartialFolder(std::filesystem::path folder, const Json& of, Status& status);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return folder_; }
  [[nodiscard]] std::filesystem::path file_of(int layer_id) const;
  [[nodiscard]] bool has(int layer_id) const;
  /// Once the whole is written: takes away what such folders hold, and the folder if nothing else is in it.
  static void remove(const std::filesystem::path& folder);

 private:
  /// Throws DataError if what is there is of other work than `of`.
  void require(const Json& found, const Json& of) const;
  void remove_damaged(Status& status) const;

  std::filesystem::path folder_;
};

}  // namespace oscar
