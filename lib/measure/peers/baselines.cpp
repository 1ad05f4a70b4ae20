// SPDX-License-Identifier: MIT
#include "measure/peers/baselines.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "base/errors.hpp"

namespace oscar {
namespace {

/// Baselines whose rows stand alone.
std::vector<Peer> row_methods() {
  constexpr Windows kServed{64, 256};
  constexpr RowCodecs kHadamard{.turn_keys = true, .turn_values = true};
  RowCodecs clipped = kHadamard, int3 = kHadamard, int4 = kHadamard;
  clipped.key_clip = kPublishedKeyClip, clipped.value_clip = kPublishedValueClip;
  int3.levels = 8, int4.levels = 16;
  return {{"bf16", "nothing is quantised", {0, 0}, {.levels = 0}},
          {"naive", "INT2, min/max of rows as they are"},
          {"hadamard", "QuaRot-INT2 of OSCAR's authors: a Hadamard per head, then their INT2 without clipping", kServed,
           kHadamard},
          {"hadamard_clip", "the same with the published clip ratios 0.96 and 0.92", kServed, clipped},
          {"int3", "Hadamard rotations, INT3", kServed, int3},
          {"int4", "Hadamard rotations, INT4", kServed, int4},
          {"saw_int4",
           "SAW-INT4: keys after a Hadamard per head, values as they are",
           {0, 0},
           {.levels = 16, .turn_keys = true, .whole_rows = true}}};
}

/// Hadamards by their size, which layers share.
using Rotations = std::map<int, std::shared_ptr<const Transform>>;

KvSide side_of(const RowCodecs& rows, bool key, int dim, int group_size, Rotations& rotations) {
  KvSide side;
  side.quantized = rows.levels > 0;
  if (!side.quantized) return side;
  side.codec.levels = rows.levels;
  side.codec.clip_ratio = key ? rows.key_clip : rows.value_clip;
  side.codec.group_size = rows.whole_rows ? dim : group_size;
  if (!(key ? rows.turn_keys : rows.turn_values)) return side;
  auto& rotation = rotations[dim];
  if (!rotation) rotation = std::make_shared<const Transform>(Transform{hadamard_baseline_matrix(dim), {}, {}});
  side.transform = rotation;
  return side;
}

}  // namespace

const std::vector<Peer>& peers() {
  static const std::vector<Peer> all = [] {
    std::vector<Peer> list;
    for (const auto part : {row_methods, methods::rotated_methods, methods::kivi_methods, methods::engine_formats}) {
      std::vector<Peer> more = part();
      std::move(more.begin(), more.end(), std::back_inserter(list));
    }
    return list;
  }();
  return all;
}

const Peer& peer_named(const std::string& name) {
  const auto found = std::ranges::find(peers(), name, &Peer::name);
  if (found != peers().end()) return *found;
  std::string known;
  for (const Peer& peer : peers()) known += (known.empty() ? "" : ", ") + peer.name;
  throw UsageError("unknown method \"" + name + "\"", "--compare", "choose from " + known + "; or all, or none, alone");
}

MatrixStack hadamard_baseline_matrix(int dim) {
  MatrixStack stack(1, dim);
  const auto size = static_cast<unsigned>(dim);
  const unsigned block = size & (~size + 1U);  // the largest power of two that divides dim
  const double entry = 1 / std::sqrt(static_cast<double>(block));
  for (unsigned i = 0; i < size; ++i) {
    for (unsigned j = i / block * block; j < (i / block + 1) * block; ++j) {
      const bool negative = (std::popcount((i % block) & (j % block)) & 1) != 0;
      stack.data[static_cast<std::size_t>(i) * size + j] = negative ? -entry : entry;
    }
  }
  return stack;
}

KvMethod make_baseline(const std::string& name, const std::vector<LayerShape>& layers, Windows windows,
                       int group_size) {
  const Peer& peer = peer_named(name);
  KvMethod method{name, name == "bf16" ? MethodKind::kExact : MethodKind::kBaseline, windows, {}};
  method.description = peer.description;
  method.before_rope = peer.before_rope;
  const bool decodes_histories = peer.key.reconstruct != nullptr;
  const auto key = std::make_shared<const SideMethod>(peer.key), value = std::make_shared<const SideMethod>(peer.value);
  Rotations rotations;
  for (const LayerShape& shape : layers) {
    KvLayer& layer = method.layers[shape.layer_id];
    layer.head_dim = shape.head_dim, layer.num_kv_heads = shape.num_kv_heads, layer.value_dim = shape.value_dim;
    layer.rotary = shape.rotary;
    if (decodes_histories) {
      layer.key.method = key, layer.value.method = value;
      continue;
    }
    const int value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
    layer.key = side_of(peer.rows, true, shape.head_dim, group_size, rotations);
    layer.value = side_of(peer.rows, false, value_dim, group_size, rotations);
  }
  return method;
}

}  // namespace oscar
