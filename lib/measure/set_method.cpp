// SPDX-License-Identifier: MIT
// Parts of a set as methods: method_of() of kv_method.hpp.
#include <algorithm>
#include <memory>

#include "kernels/backend.hpp"
#include "measure/kv_method.hpp"
#include "set/set.hpp"

namespace oscar {
namespace {

/// published_clip: the clip ratio of rotations that do not say their own.
KvSide side_of(const RotationPart& part, const SideTransform& transform, RowCodec codec, double published_clip) {
  KvSide side;
  side.transform = std::make_shared<const Transform>(transform);
  codec.clip_ratio = part.has_clip_ratios ? transform.clip_ratio : published_clip;
  side.codec = {codec, transform.head_clip_ratios};
  return side;
}

/// Keys that are stored before RoPE: turned back, coded in the basis of their pairs, and turned when they are read.
struct KeysOfPairs {
  /// A coordinate of a head, which is of two channels.
  struct Coordinate {
    std::size_t i, j;
    float write_i, write_j, read_i, read_j;
  };
  std::shared_ptr<const CodedSide> side;
  std::vector<Coordinate> coordinates;  // (Hkv, d)

  explicit KeysOfPairs(const CodedSide& from) : side(std::make_shared<const CodedSide>(from)) {
    const MatrixStack &write = side->transform.rotation, &read = side->transform.read_rotation;
    const auto dim = static_cast<std::size_t>(write.dim);
    for (const int pair : pairs_of(*side)) {
      const auto p = 2 * static_cast<std::size_t>(pair);
      const auto i = static_cast<std::size_t>(side->rotary->pairs[p]),
                 j = static_cast<std::size_t>(side->rotary->pairs[p + 1]);
      const auto entry = [&](const MatrixStack& of, std::size_t row) {
        const std::size_t head = coordinates.size() / dim, column = coordinates.size() % dim;
        return static_cast<float>(of.data[(head * dim + row) * dim + column]);
      };
      coordinates.push_back({i, j, entry(write, i), entry(write, j), entry(read, i), entry(read, j)});
    }
  }

  /// The rows of one head are coded and decoded.
  void code_head(const History& history, int head) const {
    const auto dim = static_cast<std::size_t>(history.dim), step = dim * static_cast<std::size_t>(history.heads);
    const auto own = std::span(coordinates).subspan(static_cast<std::size_t>(head) * dim, dim);
    const auto means = std::span(side->transform.mean).subspan(static_cast<std::size_t>(head) * dim, dim);
    const std::vector<float> mean(means.begin(), means.end());
    std::vector<float> coded(static_cast<std::size_t>(history.tokens) * dim);
    const auto row_of = [&](std::size_t t) {
      return history.rows.subspan(t * step + static_cast<std::size_t>(head) * dim, dim);
    };
    for (std::size_t t = 0; t * dim < coded.size(); ++t) {
      const std::span<const float> x = row_of(t);
      for (std::size_t c = 0; c < dim; ++c) {
        const Coordinate& y = own[c];
        coded[t * dim + c] = (x[y.i] - mean[y.i]) * y.write_i + (x[y.j] - mean[y.j]) * y.write_j;
      }
    }
    const Precision precision = history.context.precision;
    if (precision == Precision::kServing) round_to_bf16(coded);
    HistoryCodec codec;
    codec.coded = std::make_shared<const std::vector<CodedFormat>>(1, side->formats[static_cast<std::size_t>(head)]);
    history.context.backend->quantize(coded, history.dim, codec, precision, coded, nullptr);
    for (std::size_t t = 0; t * dim < coded.size(); ++t) {
      const std::span<float> x = row_of(t);
      std::ranges::copy(mean, x.begin());
      for (std::size_t c = 0; c < dim; ++c) {
        x[own[c].i] += coded[t * dim + c] * own[c].read_i, x[own[c].j] += coded[t * dim + c] * own[c].read_j;
      }
    }
  }

  void operator()(const History& history) const {
    turn(*side->rotary, Turn::kBack, history.rows, history.heads, history.first_position);
    for (int head = 0; head < history.heads; ++head) code_head(history, head);
    turn(*side->rotary, Turn::kForth, history.rows, history.heads, history.first_position);
  }
};

KvSide kv_side(const CodedSide& side) {
  KvSide kv;
  if (side.rotary) {
    kv.method =
        std::make_shared<const SideMethod>(SideMethod{KeysOfPairs(side), [bits = bits_of(side)](const KvShape&) {
                                                        return StoredBits{bits, 0};
                                                      }});
    return kv;
  }
  kv.transform = std::make_shared<const Transform>(side.transform);
  kv.codec.coded = std::make_shared<const std::vector<CodedFormat>>(side.formats);
  return kv;
}

}  // namespace

KvMethod method_of(const RotationPart& part, Windows windows) {
  KvMethod method{kRotationsName, MethodKind::kThis, windows, {}};
  method.description = "rotations of the set under test";
  for (const LayerRotation& layer : part.layers) {
    method.layers[layer.layer_id] = {
        layer.key.rotation.dim, side_of(part, layer.key, part.key_codec, kPublishedKeyClip),
        side_of(part, layer.value, part.value_codec, kPublishedValueClip), 1, layer.value.rotation.dim};
  }
  return method;
}

KvMethod method_of(const CodedPart& part, Windows windows) {
  KvMethod method{kCodedName, MethodKind::kThis, windows, {}};
  method.description = "the coded cache of the set under test";
  for (const CodedLayer& layer : part.layers) {
    method.layers[layer.layer_id] = {layer.key.transform.rotation.dim, kv_side(layer.key), kv_side(layer.value),
                                     static_cast<int>(layer.key.formats.size()), layer.value.transform.rotation.dim};
  }
  return method;
}

}  // namespace oscar
