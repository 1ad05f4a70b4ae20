// SPDX-License-Identifier: MIT
// Product codebooks of OSCAR's SGLang (FutureMLS-Lab/OSCAR at 00b29b8; SGLANG_OSCAR_PQ_K_CODEBOOK): a row, rotated, is
// cut into `n_sub` pieces, and each is stored as the number of its nearest centroid, a byte.
//   codebooks_per_layer  (layers, n_sub, centroids, sub_dim)
//   codebooks_stage1     the same
//   codebooks_stage2     the same, for what the first stage leaves; two numbers share a byte if there are up to 16
//                        centroids and n_sub is even
//   codebooks            a list of n_sub tensors (centroids, sub_dim), for all layers
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/errors.hpp"
#include "verify/inspect/kinds.hpp"

namespace oscar {
namespace {

/// Numbers of centroids that share a byte of the second stage.
constexpr std::int64_t kNibble = 16, kByte = 256;

struct Codebooks {
  std::int64_t layers = 0, pieces = 0, centroids = 0, piece_dim = 0, second_centroids = 0;
  std::vector<std::string> problems;
};

void check_numbers(const Tensor& tensor, const std::string& name, Codebooks& found) {
  const std::vector<double> values = tensor.to_doubles();
  if (!std::ranges::all_of(values, [](double v) { return std::isfinite(v); }))
    found.problems.push_back(name + ": centroids are NaN or infinite");
}

void check_centroids(std::int64_t centroids, const std::string& name, Codebooks& found) {
  if (centroids < 1 || centroids > kByte || (centroids & (centroids - 1)) != 0) {
    found.problems.push_back(name + ": " + std::to_string(centroids) +
                             " centroids, where servers take a power of two up to 256");
  }
}

/// The tensor of a member, which must have four axes.
const Tensor& stage(const PtValue& archive, const char* name, const std::string& where) {
  const PtValue* member = archive.find(std::string(name));
  const auto* tensor = member == nullptr ? nullptr : member->get_if<Tensor>();
  if (tensor == nullptr || tensor->shape.size() != 4 || tensor->size() == 0) {
    throw DataError(std::string("\"") + name + "\" is no tensor of layers, pieces, centroids and values", where,
                    "fetch the file again");
  }
  return *tensor;
}

Codebooks read_shared(const PtList& list, const std::string& where) {
  Codebooks found{0, static_cast<std::int64_t>(list.size()), 0, 0, 0, {}};
  for (const PtValue& item : list) {
    const auto* tensor = item.get_if<Tensor>();
    if (tensor == nullptr || tensor->shape.size() != 2 || tensor->size() == 0 ||
        tensor->shape != list.front().get_if<Tensor>()->shape) {
      throw DataError("\"codebooks\" is no list of tensors of one shape, centroids and values", where,
                      "fetch the file again");
    }
    found.centroids = tensor->shape[0], found.piece_dim = tensor->shape[1];
    check_numbers(*tensor, "codebooks", found);
  }
  return found;
}

Codebooks read_layers(const PtValue& archive, const std::string& where) {
  const bool residual = archive.find("codebooks_stage1") != nullptr;
  const char* name = residual ? "codebooks_stage1" : "codebooks_per_layer";
  const Tensor& first = stage(archive, name, where);
  Codebooks found{first.shape[0], first.shape[1], first.shape[2], first.shape[3], 0, {}};
  check_numbers(first, name, found);
  if (!residual) return found;
  const Tensor& second = stage(archive, "codebooks_stage2", where);
  found.second_centroids = second.shape[2];
  check_numbers(second, "codebooks_stage2", found);
  check_centroids(found.second_centroids, "codebooks_stage2", found);
  if (second.shape[0] != found.layers || second.shape[1] != found.pieces || second.shape[3] != found.piece_dim) {
    found.problems.push_back("codebooks_stage2: " + shape_text(second.shape) + " does not fit the first stage's " +
                             shape_text(first.shape));
  }
  return found;
}

/// The ids of the layers, in the order of the file.
Json layer_ids(const PtValue& archive, Codebooks& found) {
  Json ids = Json::array();
  const PtValue* member = archive.find("layer_ids");
  if (member == nullptr) {
    for (std::int64_t i = 0; i < found.layers; ++i) ids.push_back(i);
    return ids;
  }
  const auto* list = member->get_if<PtList>();
  std::set<std::int64_t> distinct;
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const auto* number = (*list)[i].get_if<std::int64_t>();
    if (number != nullptr && distinct.insert(*number).second) ids.push_back(*number);
  }
  if (list == nullptr || std::ssize(ids) != found.layers || std::ssize(*list) != found.layers) {
    found.problems.push_back("layer_ids: not one id for each of " + std::to_string(found.layers) + " layers");
  }
  return ids;
}

void check_said(const PtValue& archive, const char* name, std::int64_t is, Codebooks& found) {
  const PtValue* member = archive.find(std::string(name));
  const auto* said = member == nullptr ? nullptr : member->get_if<std::int64_t>();
  if (said != nullptr && *said != is) {
    found.problems.push_back(std::string(name) + " says " + std::to_string(*said) + ", and the tensors have " +
                             std::to_string(is));
  }
}

}  // namespace

bool is_codebook_file(const PtValue& archive) {
  return std::ranges::any_of(std::array{"codebooks_per_layer", "codebooks_stage1", "codebooks"},
                             [&](const char* name) { return archive.find(std::string(name)) != nullptr; });
}

Inspection inspect_codebook_file(const PtValue& archive, const std::string& where) {
  const PtValue* shared = archive.find("codebooks");
  const auto* list = shared == nullptr ? nullptr : shared->get_if<PtList>();
  if (shared != nullptr && (list == nullptr || list->empty() || list->front().get_if<Tensor>() == nullptr)) {
    throw DataError("\"codebooks\" is no list of tensors", where, "fetch the file again");
  }
  Codebooks found = list != nullptr ? read_shared(*list, where) : read_layers(archive, where);
  check_centroids(found.centroids, "codebooks", found);
  check_said(archive, "n_sub", found.pieces, found);
  check_said(archive, "sub_dim", found.piece_dim, found);
  check_said(archive, "n_centroids", found.centroids, found);
  Inspection inspection{"product codebooks of OSCAR (.pt)", {}, {}};
  Json& facts = inspection.facts;
  for (const char* name : {"tensor", "rotation", "model"}) {
    const PtValue* member = archive.find(std::string(name));
    const auto* text = member == nullptr ? nullptr : member->get_if<std::string>();
    if (text != nullptr) facts[name] = *text;
  }
  if (list == nullptr) facts["layers"] = layer_ids(archive, found);
  facts["head_dim"] = found.pieces * found.piece_dim;
  facts["pieces"] = found.pieces;
  facts["centroids"] = found.centroids;
  if (found.second_centroids > 0) facts["residual_centroids"] = found.second_centroids;
  const bool paired = found.second_centroids <= kNibble && found.pieces % 2 == 0;
  const double second_bytes = found.second_centroids == 0 ? 0 : paired ? 0.5 : 1;
  facts["bits_per_value"] = 8 * (1 + second_bytes) / static_cast<double>(found.piece_dim);
  inspection.problems = found.problems;
  return inspection;
}

}  // namespace oscar
