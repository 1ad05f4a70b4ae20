// SPDX-License-Identifier: MIT
// HDF5 files as a tree of tensors. The only user of the HDF5 library.
// Non-goals: partial reads, compression, compound types.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensor/tensor.hpp"

namespace oscar {

/// Builds a file; nothing is visible under its name before commit().
class Hdf5Writer {
 public:
  explicit Hdf5Writer(const std::filesystem::path& path);
  ~Hdf5Writer();
  Hdf5Writer(const Hdf5Writer&) = delete;
  Hdf5Writer& operator=(const Hdf5Writer&) = delete;

  /// Groups on the way ("/layers/0/key") are created. float16 and bfloat16 are 16-bit floats of HDF5, which its
  /// readers convert (h5py: the first to float16, the second to float32).
  void write(const std::string& dataset, const Tensor& tensor);
  /// Sets an attribute of the root to a text, which may not be empty.
  void attribute(const std::string& name, const std::string& text);
  /// Closes, syncs, renames. Throws IoError.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Files of others are read by another process first: hdf5.cpp says why.
enum class Hdf5Source { kOthers, kOwn };

class Hdf5Reader {
 public:
  /// Opens a file. Throws DataError if it is missing, truncated or not HDF5, or forged so that the HDF5 library fails
  /// on it.
  explicit Hdf5Reader(const std::filesystem::path& path, Hdf5Source source = Hdf5Source::kOthers);
  ~Hdf5Reader();
  Hdf5Reader(const Hdf5Reader&) = delete;
  Hdf5Reader& operator=(const Hdf5Reader&) = delete;

  /// Every method refuses, with a DataError, objects that lie behind a soft or external link, and datasets whose values
  /// lie in other files (external storage, virtual datasets); this one looks for such links in all of the file, as the
  /// constructor does with files of others.
  void require_own_links() const;
  [[nodiscard]] bool has(const std::string& object) const;
  /// Names of the members of a group, in alphabetical order. Throws DataError if it is missing.
  [[nodiscard]] std::vector<std::string> members(const std::string& group) const;
  /// Reads a dataset. Throws DataError if it is missing or of a foreign type.
  [[nodiscard]] Tensor read(const std::string& dataset) const;
  /// Tells where a dataset lies in the file. Throws DataError as read() does, and if it is chunked, compressed or
  /// external.
  [[nodiscard]] TensorLocation locate(const std::string& dataset) const;
  /// Returns the names of the attributes of a group or dataset, in no order. Throws DataError if it is missing.
  [[nodiscard]] std::vector<std::string> attribute_names(const std::string& object) const;
  /// Returns an attribute that is one text of fixed length; nothing if it is missing, or something else.
  [[nodiscard]] std::optional<std::string> attribute(const std::string& object, const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
