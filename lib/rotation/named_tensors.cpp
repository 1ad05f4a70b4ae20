// SPDX-License-Identifier: MIT
#include "rotation/named_tensors.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/errors.hpp"

namespace oscar {
namespace {

using NamedTensor = std::pair<std::string, Tensor>;

/// Of the read side, as in format version 3 of the .pt files.
const char* read_name(bool key) { return key ? "q_rotation" : "o_rotation"; }

std::string side_prefix(int layer_id, bool key, char separator) {
  const std::string s(1, separator);
  return "layers" + s + std::to_string(layer_id) + s + (key ? "key" : "value") + s;
}

void append_side(const SideTransform& side, bool key, const std::string& prefix, std::vector<NamedTensor>& out) {
  const bool squeeze = side.rotation.count == 1;
  const auto dim = static_cast<std::int64_t>(side.rotation.dim);
  const auto add = [&](const char* name, const MatrixStack& stack) {
    if (stack.count > 0) out.emplace_back(prefix + name, stack.to_f32(squeeze));
  };
  add("rotation", side.rotation);
  add(read_name(key), side.read_rotation);
  if (!side.mean.empty()) {
    const auto heads = static_cast<std::int64_t>(side.mean.size()) / dim;
    out.emplace_back(prefix + "mean", Tensor::from({heads, dim}, std::span(side.mean)));
  }
  if (!side.eigenvalues.empty()) {
    const std::vector<float> eigenvalues(side.eigenvalues.begin(), side.eigenvalues.end());
    std::vector<std::int64_t> shape{dim};
    if (!squeeze) shape.insert(shape.begin(), side.rotation.count);
    out.emplace_back(prefix + "eigenvalues", Tensor::from(shape, std::span(eigenvalues)));
  }
  if (!side.head_clip_ratios.empty()) {
    const auto heads = static_cast<std::int64_t>(side.head_clip_ratios.size());
    out.emplace_back(prefix + "clip_ratio_per_head", Tensor::from({heads}, std::span(side.head_clip_ratios)));
  }
  add("covariance", side.covariance);
  add("query_covariance", side.query_covariance);
}

void fill_side(SideTransform& side, bool key, const TensorLookup& tensors, const std::string& prefix,
               const std::string& where) {
  const auto stack = [&](const std::string& name) {
    return MatrixStack::from(tensors.read(prefix + name), where + ", " + prefix + name);
  };
  side.rotation = stack("rotation");
  for (const auto& [name, matrices] :
       {std::pair{read_name(key), &side.read_rotation}, std::pair{"covariance", &side.covariance},
        std::pair{"query_covariance", &side.query_covariance}}) {
    if (tensors.has(prefix + name)) *matrices = stack(name);
  }
  if (tensors.has(prefix + "mean")) side.mean = tensors.read(prefix + "mean").to_doubles();
  if (tensors.has(prefix + "eigenvalues")) side.eigenvalues = tensors.read(prefix + "eigenvalues").to_doubles();
  const auto same_shape = [&](const MatrixStack& other) {
    return other.count == 0 || (other.count == side.rotation.count && other.dim == side.rotation.dim);
  };
  const auto numbers = static_cast<std::size_t>(side.rotation.count) * side.rotation.dim;
  const bool fits = side.rotation.dim > 0 && (side.eigenvalues.empty() || side.eigenvalues.size() == numbers) &&
                    same_shape(side.covariance) && same_shape(side.query_covariance) &&
                    same_shape(side.read_rotation) &&
                    side.mean.size() % static_cast<std::size_t>(side.rotation.dim) == 0;
  if (!fits) {
    throw DataError("read side, mean, eigenvalues or covariance do not fit the rotation", where + ", " + prefix,
                    "fit the set again");
  }
}

}  // namespace

std::vector<NamedTensor> tensors_of(const RotationSet& set, char separator) {
  std::vector<NamedTensor> out;
  for (const LayerRotation& layer : set.layers) {
    append_side(layer.key, true, side_prefix(layer.layer_id, true, separator), out);
    append_side(layer.value, false, side_prefix(layer.layer_id, false, separator), out);
  }
  return out;
}

Tensor bytes_tensor(const std::string& text) {
  Tensor tensor(DType::kU8, {static_cast<std::int64_t>(text.size())});
  std::ranges::copy(std::as_bytes(std::span(text)), tensor.data.begin());
  return tensor;
}

void require_finite(const RotationSet& set, const std::string& where) {
  const auto finite = [](const std::vector<double>& values) {
    return std::ranges::all_of(values, [](double x) { return std::isfinite(static_cast<float>(x)); });
  };
  const auto sane = [](const std::vector<double>& values) {
    return std::ranges::all_of(values, [](double x) { return std::abs(x) <= 1e6; });
  };
  for (const LayerRotation& layer : set.layers) {
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      if (sane(side->rotation.data) && sane(side->read_rotation.data) && finite(side->rotation.data) &&
          finite(side->read_rotation.data) && finite(side->mean) && finite(side->eigenvalues) &&
          finite(side->covariance.data) && finite(side->query_covariance.data)) {
        continue;
      }
      throw DataError("layer " + std::to_string(layer.layer_id) + " has values that are NaN, infinite or beyond reason",
                      where, "fit the set again, or ask its maker");
    }
  }
}

void fill_layers(RotationSet& set, const TensorLookup& tensors, char separator, const std::string& where) {
  for (LayerRotation& layer : set.layers) {
    fill_side(layer.key, true, tensors, side_prefix(layer.layer_id, true, separator), where);
    fill_side(layer.value, false, tensors, side_prefix(layer.layer_id, false, separator), where);
  }
}

}  // namespace oscar
