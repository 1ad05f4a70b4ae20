// SPDX-License-Identifier: MIT
// What the libtorch plug-in (pt_torch.cpp) offers to pt.cpp.
#pragma once

#include <filesystem>
#include <string>

#include "base/places.hpp"
#include "tensor/pt.hpp"

namespace oscar {

class PtPlugin {
 public:
  virtual ~PtPlugin() = default;
  /// name: of the file, in messages.
  [[nodiscard]] virtual PtValue read(const PlacedFile& file, const std::string& name) const = 0;
  [[nodiscard]] virtual TensorLocation locate(const PlacedFile& file, const std::string& name) const = 0;
  /// Writes to `path` itself; making that atomic is the caller's part.
  virtual void write(const std::filesystem::path& path, const PtValue& value) const = 0;
};

}  // namespace oscar

/// The plug-in's one export.
extern "C" const oscar::PtPlugin* oscar_pt_plugin();
