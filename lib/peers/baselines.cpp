// SPDX-License-Identifier: MIT
#include "peers/baselines.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "peers/sequence_method.hpp"

namespace oscar {
namespace {

constexpr int kWholeHead = 1 << 30;

/// A baseline whose rows stand alone: rows times a Hadamard, then a row codec.
struct RowBaseline {
  const char* name = "";
  const char* description = "";
  Windows windows{0, 0};
  int key_hadamard = 0, value_hadamard = 0;  // order; 0: none
  int levels = 4;
  int group_size = 0;  // 0: that of the set
  double key_clip = 0, value_clip = 0;
  Grid grid = Grid::kMinMax;
};

constexpr Windows kServed{64, 256};
constexpr std::array kRowBaselines{
    RowBaseline{"bf16", "nothing is quantised"},
    RowBaseline{"naive", "INT2, min/max of rows as they are"},
    RowBaseline{"hadamard", "QuaRot-INT2 of OSCAR's authors: a Hadamard per head, then their INT2 without clipping",
                kServed, kWholeHead, kWholeHead},
    RowBaseline{"hadamard_clip", "the same with the published clip ratios 0.96 and 0.92", kServed, kWholeHead,
                kWholeHead, 4, 0, kPublishedKeyClip, kPublishedValueClip},
    RowBaseline{"hadamard_h16", "QuaRot-INT2 with their runtime's default, Hadamard blocks of 16", kServed, 16, 16},
    RowBaseline{"naive_g64", "INT2, min/max of 64 channels", {0, 0}, 0, 0, 4, 64},
    RowBaseline{"naive_g32", "INT2, min/max of 32 channels", {0, 0}, 0, 0, 4, 32},
    RowBaseline{"saw_int4",
                "SAW-INT4: keys after a Hadamard per head, values as they are",
                {0, 0},
                kWholeHead,
                0,
                16,
                kWholeHead},
    RowBaseline{"lloyd_max_oscar", "Hadamard, INT2 codes as in OSCAR's published Lloyd-Max option", kServed, kWholeHead,
                kWholeHead, 4, kWholeHead, 0, 0, Grid::kLloydMax}};

/// Rotations of one size are shared by layers.
class Rotations {
 public:
  std::shared_ptr<const Transform> hadamard(int dim, int order) {
    if (order == 0) return nullptr;
    auto& rotation = made_[{dim, order}];
    if (!rotation)
      rotation = std::make_shared<const Transform>(Transform{hadamard_baseline_matrix(dim, order), {}, {}});
    return rotation;
  }

 private:
  std::map<std::pair<int, int>, std::shared_ptr<const Transform>> made_;
};

KvLayer layer_of(const RowBaseline& baseline, const LayerShape& shape, int group_size, Rotations& rotations) {
  const auto side_of = [&](int dim, int hadamard, double clip_ratio) {
    KvSide side;
    side.quantized = baseline.name != std::string("bf16");
    side.codec.levels = baseline.levels;
    side.codec.grid = baseline.grid;
    side.codec.clip_ratio = clip_ratio;
    // A group that does not divide this head shrinks to one that does.
    side.codec.group_size = baseline.group_size != 0 ? std::gcd(std::min(baseline.group_size, dim), dim) : group_size;
    side.transform = rotations.hadamard(dim, hadamard);
    return side;
  };
  const int value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
  return {shape.head_dim, side_of(shape.head_dim, baseline.key_hadamard, baseline.key_clip),
          side_of(value_dim, baseline.value_hadamard, baseline.value_clip), shape.num_kv_heads, shape.value_dim};
}

const RowBaseline& row_baseline(const std::string& name) {
  for (const RowBaseline& baseline : kRowBaselines) {
    if (baseline.name == name) return baseline;
  }
  std::string known;
  for (const std::string& each : baseline_names()) known += (known.empty() ? "" : ", ") + each;
  throw UsageError("unknown method \"" + name + "\"", "--compare",
                   "choose from " + known +
                       "; or int3, int4 (this set with more levels), bisect (this set, clipped as decode kernels do), "
                       "all, every, none");
}

}  // namespace

MatrixStack hadamard_baseline_matrix(int dim, int order) {
  MatrixStack stack(1, dim);
  const auto size = static_cast<unsigned>(dim);
  // The largest power of two that divides dim, at most `order`.
  const unsigned block = std::min(size & (~size + 1U), std::bit_floor(static_cast<unsigned>(order)));
  const double entry = 1 / std::sqrt(static_cast<double>(block));
  for (unsigned i = 0; i < size; ++i) {
    for (unsigned j = i / block * block; j < (i / block + 1) * block; ++j) {
      const bool negative = (std::popcount((i % block) & (j % block)) & 1) != 0;
      stack.data[static_cast<std::size_t>(i) * size + j] = negative ? -entry : entry;
    }
  }
  return stack;
}

const std::vector<std::string>& baseline_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list(kRowBaselines.size() + sequence_methods().size());
    const auto next = std::transform(kRowBaselines.begin(), kRowBaselines.end(), list.begin(),
                                     [](const RowBaseline& baseline) { return baseline.name; });
    std::transform(sequence_methods().begin(), sequence_methods().end(), next,
                   [](const SequenceMethod& method) { return method.name; });
    return list;
  }();
  return names;
}

Windows own_windows(const std::string& name) {
  if (const SequenceMethod* method = find_sequence_method(name)) return method->windows;
  return row_baseline(name).windows;
}

KvMethod make_baseline(const std::string& name, const std::vector<LayerShape>& layers, Windows windows, int group_size,
                       std::optional<Rope> rope) {
  KvMethod method{name, name == "bf16" ? MethodKind::kExact : MethodKind::kBaseline, windows, {}};
  if (const SequenceMethod* const sequence = find_sequence_method(name)) {
    method.description = sequence->summary;
    method.before_rope = sequence->before_rope;
    method.rope = rope;
    const std::size_t ends = sequence->exact_end_layers;
    KvSide key, value;
    key.method = std::make_shared<const SideMethod>(sequence->key);
    value.method = std::make_shared<const SideMethod>(sequence->value);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      key.quantized = value.quantized = i >= ends && i + ends < layers.size();
      method.layers[layers[i].layer_id] = {layers[i].head_dim, key, value, layers[i].num_kv_heads, layers[i].value_dim};
    }
    return method;
  }
  const RowBaseline& baseline = row_baseline(name);
  method.description = baseline.description;
  Rotations rotations;
  for (const LayerShape& shape : layers) {
    method.layers[shape.layer_id] = layer_of(baseline, shape, group_size, rotations);
  }
  return method;
}

}  // namespace oscar
