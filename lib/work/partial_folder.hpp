// SPDX-License-Identifier: MIT
// Finished layers in a folder, one file each: what work that ends early leaves to the next.
// Each file is whole or absent, and has checksums (tensor/safetensors.hpp); all of them are of one piece
// of work, which the folder names. What a layer's file holds is its user's business.
#pragma once

#include <filesystem>

#include "base/json.hpp"
#include "base/status.hpp"

namespace oscar {

class PartialFolder {
 public:
  /// What to do with a folder that is there already: use its layers, which must be of this work, or begin again.
  enum class Earlier { kUse, kReplace };

  /// Member of `of` with a fingerprint for each layer, which only layers that are there already must share: another may
  /// have been mended since.
  static constexpr const char* kDataOfLayers = "data_of_layers";

  /// `of`: all that decides the result. Earlier layers that are to be used but damaged are removed, and `status` hears
  /// of it. Throws DataError if they are of other work, or if the folder holds something else.
  PartialFolder(std::filesystem::path folder, const Json& of, Earlier earlier, Status* status = nullptr);
  /// Whether layers of this work are there already.
  [[nodiscard]] static bool is_of(const std::filesystem::path& folder, const Json& of);
  /// Names of the members in which two such records differ; "" if in none.
  [[nodiscard]] static std::string differences(const Json& one, const Json& other);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return folder_; }
  [[nodiscard]] std::filesystem::path file_of(int layer_id) const;
  [[nodiscard]] bool has(int layer_id) const;
  /// Once the whole is written: takes away what such folders hold, and the folder if nothing else is in it.
  void remove() const;
  static void remove(const std::filesystem::path& folder);

 private:
  /// Throws DataError if what is there is of other work than `of`.
  void require(const Json& found, const Json& of) const;
  void remove_damaged(Status* status) const;

  std::filesystem::path folder_;
};

}  // namespace oscar
