// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "verify/inspect/inspect.hpp"
#include "verify/structure/checks.hpp"

namespace oscar {
namespace {

using verify::kOrthogonalityLimit;

struct Summary {
  std::vector<std::int64_t> layer_ids;
  int head_dim = 0, heads = 0;  // of the layer that was looked at last
  std::set<int> head_dims;
  double orthogonality = 0, orthogonality_bf16 = 0;
  double eigenvalue_min = 0, eigenvalue_max = 0, effective_rank = 0;  // effective_rank: sum over spectra
  std::int64_t spectra = 0, query_rotations = 0, output_rotations = 0, key_means = 0;
  std::vector<std::string> problems;
};

/// max |a_i . b_j - (i == j)| over rows i of a and j of b: 0 if b is the inverse of a transposed.
double distance_from_identity(std::span<const double> a, std::span<const double> b, int dim) {
  const auto n = static_cast<std::size_t>(dim);
  double worst = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      double dot = i == j ? -1.0 : 0.0;
      for (std::size_t k = 0; k < n; ++k) dot += a[i * n + k] * b[j * n + k];
      worst = std::isfinite(dot) ? std::max(worst, std::abs(dot)) : INFINITY;
    }
  }
  return worst;
}

MatrixStack rounded_to_bf16(MatrixStack matrices) {
  for (double& value : matrices.data) value = round_to_bf16(static_cast<float>(value));
  return matrices;
}

const Tensor* tensor_at(const PtValue& layer, const char* name) {
  const PtValue* member = layer.find(std::string(name));
  return member == nullptr ? nullptr : member->get_if<Tensor>();
}

void check_eigenvalues(const Tensor& tensor, const std::string& where, Summary& summary) {
  const std::vector<double> values = tensor.to_doubles();
  if (values.size() % static_cast<std::size_t>(summary.head_dim) != 0 || values.empty()) {
    summary.problems.push_back(where + ": " + plural(values.size(), "eigenvalue") + " for head_dim " +
                               std::to_string(summary.head_dim));
    return;
  }
  for (auto begin = values.begin(); begin != values.end(); begin += summary.head_dim) {
    const std::span<const double> spectrum(&*begin, static_cast<std::size_t>(summary.head_dim));
    if (!std::ranges::all_of(spectrum, [](double v) { return std::isfinite(v); })) {
      summary.problems.push_back(where + ": eigenvalues are NaN or infinite");
      return;
    }
    if (!std::ranges::is_sorted(spectrum)) summary.problems.push_back(where + ": eigenvalues are not ascending");
    double sum = 0, entropy = 0;
    for (const double v : spectrum) sum += std::max(v, 0.0);
    for (const double v : spectrum) entropy -= v > 0 ? v / sum * std::log(v / sum) : 0;
    summary.effective_rank += std::exp(entropy);
    const auto [low, high] = std::ranges::minmax(spectrum);
    summary.eigenvalue_min = summary.spectra == 0 ? low : std::min(summary.eigenvalue_min, low);
    summary.eigenvalue_max = summary.spectra == 0 ? high : std::max(summary.eigenvalue_max, high);
    ++summary.spectra;
  }
}

/// Orthogonality of one layer; with a read side, R_read R^T = I instead, which keeps q . k and the output.
void check_matrices(const MatrixStack& rotation, const Tensor* read_side, const std::string& where, Summary& summary) {
  const MatrixStack other = read_side == nullptr ? rotation : MatrixStack::from(*read_side, where + ", read side");
  if (other.count != rotation.count || other.dim != rotation.dim) {
    summary.problems.push_back(where + ": rotation and read side differ in shape");
    return;
  }
  const MatrixStack cast = rounded_to_bf16(rotation);
  const MatrixStack other_cast = rounded_to_bf16(other);
  for (int h = 0; h < rotation.count; ++h) {
    const double error = distance_from_identity(rotation[h], other[h], rotation.dim);
    summary.orthogonality = std::max(summary.orthogonality, error);
    summary.orthogonality_bf16 =
        std::max(summary.orthogonality_bf16, distance_from_identity(cast[h], other_cast[h], rotation.dim));
    if (!(error <= kOrthogonalityLimit)) {
      summary.problems.push_back(
          where + (rotation.count > 1 ? ", head " + std::to_string(h) : "") +
          (read_side == nullptr ? ": not orthogonal" : ": the read side does not undo the rotation") +
          " (largest deviation " + std::to_string(error) + ")");
    }
  }
}

void check_layer(const PtValue& layer, const std::string& where, Summary& summary) {
  const Tensor* rotation = tensor_at(layer, "rotation");
  if (rotation == nullptr) {
    summary.problems.push_back(where + ": no tensor \"rotation\"");
    return;
  }
  const MatrixStack matrices = MatrixStack::from(*rotation, where + ", rotation");
  if (summary.head_dims.empty()) summary.heads = matrices.count;
  if (summary.heads != matrices.count && matrices.dim == summary.head_dim) {
    summary.problems.push_back(where + ": another number of matrices than the layer before");
    return;
  }
  summary.head_dim = matrices.dim,
  summary.heads = matrices.count;  // heads of sliding layers may have a size of their own
  summary.head_dims.insert(matrices.dim);
  const Tensor* query_side = tensor_at(layer, "q_rotation");
  summary.query_rotations += query_side != nullptr ? 1 : 0;
  summary.output_rotations += tensor_at(layer, "o_rotation") != nullptr ? 1 : 0;
  summary.key_means += tensor_at(layer, "k_mean") != nullptr ? 1 : 0;
  check_matrices(matrices, query_side != nullptr ? query_side : tensor_at(layer, "o_rotation"), where, summary);
  if (const Tensor* eigenvalues = tensor_at(layer, "eigenvalues")) check_eigenvalues(*eigenvalues, where, summary);
}

std::optional<std::int64_t> layer_id(const PtValue& key) {
  if (const auto* number = key.get_if<std::int64_t>()) return *number;
  const auto* text = key.get_if<std::string>();
  if (text == nullptr || text->empty() || text->size() > 9 ||
      !std::ranges::all_of(*text, [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  return std::stoll(*text);
}

Summary summarize(const PtValue& archive, const std::string& where) {
  Summary summary;
  const auto* layers = archive.find("layers")->get_if<PtDict>();
  if (layers == nullptr || layers->empty()) {
    throw DataError("a rotation file without layers", where, "write or fetch the file again");
  }
  for (const auto& [key, layer] : *layers) {
    const auto id = layer_id(key);
    if (!id) throw DataError("a layer's key is not a number", where, "write or fetch the file again");
    summary.layer_ids.push_back(*id);
    check_layer(layer, "layer " + std::to_string(*id), summary);
  }
  return summary;
}

std::string text_at(const PtValue& archive, const char* name, const std::string& fallback) {
  const PtValue* member = archive.find(std::string(name));
  const auto* text = member == nullptr ? nullptr : member->get_if<std::string>();
  return text == nullptr ? fallback : *text;
}

}  // namespace

Inspection inspect_rotation_file(const PtValue& archive, const std::string& where) {
  const auto* version = archive.find("format_version")->get_if<std::int64_t>();
  if (version == nullptr || *version < 1 || *version > 3) {
    throw DataError("a rotation file of an unknown format version", where, "fetch a file of version 1, 2 or 3");
  }
  const std::string objective = text_at(archive, "objective", "unknown");
  const auto split = objective.find('_');
  const Summary summary = summarize(archive, where);
  Inspection found{"rotation file (.pt)", {}, summary.problems};
  Json& facts = found.facts;
  facts["format_version"] = *version;
  facts["objective"] = objective.substr(0, split);
  if (split != std::string::npos) facts["composition"] = objective.substr(split + 1);
  facts["source_grouping"] = text_at(archive, "source_grouping", "unknown");
  facts["num_layers"] = summary.layer_ids.size();
  facts["layers"] = summary.layer_ids;
  facts["head_dim"] = summary.head_dims.size() == 1 ? Json(summary.head_dim) : Json(summary.head_dims);
  facts["matrices_per_layer"] = summary.heads;
  facts["largest_deviation_from_orthogonal"] = {{"float32", summary.orthogonality},
                                                {"bfloat16", summary.orthogonality_bf16}};
  if (summary.spectra > 0) {
    facts["eigenvalues"] = {{"min", summary.eigenvalue_min},
                            {"max", summary.eigenvalue_max},
                            {"mean_effective_rank", summary.effective_rank / static_cast<double>(summary.spectra)}};
  }
  if (summary.query_rotations > 0) facts["layers_with_query_rotation"] = summary.query_rotations;
  if (summary.key_means > 0) facts["layers_with_key_mean"] = summary.key_means;
  if (summary.output_rotations > 0) facts["layers_with_output_rotation"] = summary.output_rotations;
  return found;
}

}  // namespace oscar
