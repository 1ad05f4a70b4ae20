// SPDX-License-Identifier: MIT
// One file of statistics (moments/statistics.hpp), or of moments that a server kept (dump/server_file.hpp; its name
// ends with .pt): its manifest at once, its sums layer by layer; and what sums must be, in whatever file.
#pragma once

#include <filesystem>
#include <string>

#include "dump/server_file.hpp"
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
  /// cannot be sums over rows.
  [[nodiscard]] LayerStatistics read(const LayerStatistics& layer) const;
  /// Of how many tokens the layer's sums are, as they say themselves, and of how many of them rows are kept; 0:
  /// unknown, and none.
  struct Size {
    double tokens = 0;
    std::int64_t rows = 0;
  };
  [[nodiscard]] Size size_of(const LayerStatistics& layer) const;

 private:
  [[nodiscard]] bool has(const std::string& name) const { return file_->tensors().contains(name); }
  [[nodiscard]] std::vector<double> vector(const std::string& name, std::size_t size) const;
  [[nodiscard]] MatrixStack stack(const std::string& name, int dim) const;
  [[nodiscard]] MomentSums moments(const std::string& name, int dim) const;
  [[nodiscard]] FisherSums fisher(const std::string& name, const LayerStatistics& layer) const;
  [[nodiscard]] std::vector<std::vector<float>> rows(const std::string& name, int heads, int dim) const;
  [[nodiscard]] std::vector<SampledSequence> clip_sample(const std::string& prefix, int heads,
                                                         const LayerStatistics& layer) const;
  /// Throws DataError about a tensor.
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const;

  std::string path_;
  std::optional<SafetensorsFile> file_;  // of ours
  std::optional<ServerFile> server_;
  Statistics manifest_;
};

// What sums over rows are, whatever the rows: finite, symmetric, with a diagonal that bounds the rest, and positive
// semidefinite within rounding. Whether they are those of the data that a manifest names is not looked at, but for the
// number of tokens.

/// Looks at one layer as a file has it, in time like that of reading it. Throws DataError, which names the sums, unless
/// heads and dimensions are those of the manifest's model, totals are no more than the tokens of its data, and all sums
/// could be sums over rows as far as single entries tell. where: names the file.
void require_sums_of_rows(const LayerStatistics& layer, const Statistics& manifest, const std::string& where);

/// Throws DataError if a sum over the layer's rows has an eigenvalue below -1e-5 of its trace (moments by fp32 products
/// are within 2e-6).
void require_semidefinite(const LayerStatistics& layer, const std::string& where);

}  // namespace oscar
