// SPDX-License-Identifier: MIT
// One file of statistics (moments/statistics.hpp): its manifest at once, its sums layer by layer. For moments/ only.
#pragma once

#include <filesystem>
#include <string>

#include "moments/statistics.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {

class StatisticsFile {
 public:
  /// Throws DataError if it is missing, damaged, or something else.
  explicit StatisticsFile(const std::filesystem::path& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Returns what the file says of itself, without sums.
  [[nodiscard]] const Statistics& manifest() const { return manifest_; }
  /// The layer with its sums; throws DataError if their shapes do not fit together, a checksum is another, or they
  /// cannot be sums over rows (moments/statistics_check.hpp).
  [[nodiscard]] LayerStatistics read(const LayerStatistics& layer) const;

 private:
  [[nodiscard]] bool has(const std::string& name) const { return file_.tensors().contains(name); }
  [[nodiscard]] std::vector<double> vector(const std::string& name, std::size_t size) const;
  [[nodiscard]] MatrixStack stack(const std::string& name, int dim) const;
  [[nodiscard]] MomentSums moments(const std::string& name, int dim) const;
  [[nodiscard]] FisherSums fisher(const std::string& name, int dim) const;

  std::string path_;
  SafetensorsFile file_;
  Statistics manifest_;
};

}  // namespace oscar
