// SPDX-License-Identifier: MIT
#include "peers/codebook_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/errors.hpp"

namespace oscar {
namespace {

/// Numbers that a code's byte holds.
constexpr std::int64_t kByte = 256;

/// A stage of `count` layers, whose centroids follow each other.
struct StackedStage {
  std::int64_t count = 0, pieces = 0, centroids = 0, piece_dim = 0;
  std::vector<double> values;

  [[nodiscard]] ProductStage of_layer(std::int64_t layer) const {
    ProductStage stage{static_cast<int>(pieces), static_cast<int>(centroids), static_cast<int>(piece_dim), {}};
    if (values.empty()) return stage;
    const auto size = static_cast<std::size_t>(pieces * centroids * piece_dim);
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(size) * layer;
    std::transform(begin, begin + static_cast<std::ptrdiff_t>(size), std::back_inserter(stage.values),
                   [](double value) { return float_from_f16(f16_from_float(static_cast<float>(value))); });
    return stage;
  }
};

void check_stage(const StackedStage& stage, const std::string& name, CodebookFile& found) {
  if (!std::ranges::all_of(stage.values, [](double v) { return std::isfinite(v); }))
    found.problems.push_back(name + ": centroids are NaN or infinite");
  if (stage.centroids > kByte || (stage.centroids & (stage.centroids - 1)) != 0) {
    found.problems.push_back(name + ": " + std::to_string(stage.centroids) +
                             " centroids, where servers take a power of two up to 256");
  }
}

/// The tensor of a member, which must have four axes.
StackedStage stacked_stage(const PtValue& archive, const char* name, const std::string& where) {
  const PtValue* member = archive.find(std::string(name));
  const auto* tensor = member == nullptr ? nullptr : member->get_if<Tensor>();
  if (tensor == nullptr || tensor->shape.size() != 4 || tensor->size() == 0) {
    throw DataError(std::string("\"") + name + "\" is no tensor of layers, pieces, centroids and values", where,
                    "fetch the file again");
  }
  return {tensor->shape[0], tensor->shape[1], tensor->shape[2], tensor->shape[3], tensor->to_doubles()};
}

StackedStage shared_stage(const PtValue& member, const std::string& where) {
  const auto* list = member.get_if<PtList>();
  const Tensor* first = list == nullptr || list->empty() ? nullptr : list->front().get_if<Tensor>();
  if (first == nullptr) throw DataError("\"codebooks\" is no list of tensors", where, "fetch the file again");
  StackedStage stage{1, std::ssize(*list), 0, 0, {}};
  for (const PtValue& item : *list) {
    const auto* tensor = item.get_if<Tensor>();
    if (tensor == nullptr || tensor->shape.size() != 2 || tensor->size() == 0 || tensor->shape != first->shape) {
      throw DataError("\"codebooks\" is no list of tensors of one shape, centroids and values", where,
                      "fetch the file again");
    }
    stage.centroids = tensor->shape[0], stage.piece_dim = tensor->shape[1];
    const std::vector<double> values = tensor->to_doubles();
    stage.values.insert(stage.values.end(), values.begin(), values.end());
  }
  return stage;
}

std::vector<StackedStage> stacked_stages(const PtValue& archive, const std::string& where, CodebookFile& found) {
  if (const PtValue* shared = archive.find("codebooks")) {
    found.shared = true;
    return {shared_stage(*shared, where)};
  }
  const bool residual = archive.find("codebooks_stage1") != nullptr;
  std::vector<StackedStage> stages{
      stacked_stage(archive, residual ? "codebooks_stage1" : "codebooks_per_layer", where)};
  if (!residual) return stages;
  StackedStage second = stacked_stage(archive, "codebooks_stage2", where);
  const StackedStage& first = stages.front();
  if (second.count != first.count || second.pieces != first.pieces || second.piece_dim != first.piece_dim) {
    const auto shape = [](const StackedStage& s) {
      return shape_text(std::array{s.count, s.pieces, s.centroids, s.piece_dim});
    };
    found.problems.push_back("codebooks_stage2: " + shape(second) + " does not fit the first stage's " + shape(first));
    second = {first.count, first.pieces, second.centroids, first.piece_dim, {}};
  }
  stages.push_back(std::move(second));
  return stages;
}

/// The ids of the layers, in the order of the file.
std::vector<std::int64_t> ids_of_codebooks(const PtValue& archive, std::int64_t count, CodebookFile& found) {
  std::vector<std::int64_t> ids;
  const PtValue* member = archive.find("layer_ids");
  if (member == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) ids.push_back(i);
    return ids;
  }
  const auto* list = member->get_if<PtList>();
  std::set<std::int64_t> distinct;
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const auto* number = (*list)[i].get_if<std::int64_t>();
    if (number != nullptr && distinct.insert(*number).second) ids.push_back(*number);
  }
  if (list == nullptr || std::ssize(ids) != count || std::ssize(*list) != count) {
    found.problems.push_back("layer_ids: not one id for each of " + std::to_string(count) + " layers");
  }
  return ids;
}

void check_said(const PtValue& archive, const char* name, std::int64_t is, CodebookFile& found) {
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

CodebookFile read_codebook_file(const PtValue& archive, const std::string& where) {
  CodebookFile found;
  const std::vector<StackedStage> stages = stacked_stages(archive, where, found);
  const StackedStage& first = stages.front();
  if (stages.size() > 1) check_stage(stages.back(), "codebooks_stage2", found);
  check_stage(first, stages.size() > 1 ? "codebooks_stage1" : "codebooks", found);
  check_said(archive, "n_sub", first.pieces, found);
  check_said(archive, "sub_dim", first.piece_dim, found);
  check_said(archive, "n_centroids", first.centroids, found);
  if (!found.shared) found.layers = ids_of_codebooks(archive, first.count, found);
  for (std::int64_t layer = 0; layer < first.count; ++layer) {
    ProductCodebook& codebook = found.codebooks.emplace_back();
    for (const StackedStage& stage : stages) codebook.stages.push_back(stage.of_layer(layer));
  }
  return found;
}

std::string said_in(const PtValue& archive, const char* name) {
  const PtValue* member = archive.find(std::string(name));
  const auto* text = member == nullptr ? nullptr : member->get_if<std::string>();
  return text != nullptr ? *text : "";
}

}  // namespace oscar
