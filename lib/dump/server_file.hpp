// SPDX-License-Identifier: MIT
// What each rank of OSCAR's SGLang keeps of its calibration, beside the rotations: oscar_moments_rank<r>.pt (format
// version 2), sums over the tokens for its KV heads, and oscar_rows_rank<r>.pt (format version 1), their keys and
// values with the queries of every q_sample_stride-th token. Rows that our observers write have more: "manifest", the
// text of an oscar.dump.v1 without layers, which tells the model and the data. Tensors stay in the file until they are
// asked for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/config/identity.hpp"
#include "tensor/pt.hpp"

namespace oscar {

inline constexpr char kMomentsOfRank[] = "oscar_moments_rank", kRowsOfRank[] = "oscar_rows_rank";

/// Whether an archive is one of these files.
[[nodiscard]] bool is_server_file(const PtValue& archive);

struct ServerFile {
  /// Throws DataError if the file is damaged or another one, if its numbers do not fit together, or if ranks shared KV
  /// heads, so that it knows a part of their queries (of moments without "rho" that is not known).
  explicit ServerFile(const std::filesystem::path& path);

  std::string path;
  PtValue content;
  bool has_rows = false;  // else moments
  ModelIdentity model;    // as far as the server or the manifest tells it
  CalibrationData data;
  std::vector<int> layer_ids;                // ascending
  int rank = 0, ranks = 0, kv_heads = 0;     // of this rank
  int group = 0, value_dim = 0, stride = 1;  // query heads of a KV head; tokens from one kept query to the next

  /// A layer's tensor of this shape, or of any if none is given. Throws DataError.
  [[nodiscard]] Tensor tensor(int layer_id, const char* name, const std::vector<std::int64_t>& shape = {}) const;
  /// What queries of a layer lack where scores are q k^T / sqrt(d): its q_scaling times sqrt(d).
  [[nodiscard]] double query_scale(int layer_id) const;

 private:
  void take_manifest();
  [[noreturn]] void refuse(const std::string& what, const char* remedy = nullptr) const;
  [[nodiscard]] int number(const PtValue& dict, const char* name, int least) const;
  [[nodiscard]] std::string text(const char* name) const;
};

}  // namespace oscar
