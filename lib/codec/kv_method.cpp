// SPDX-License-Identifier: MIT
#include "codec/kv_method.hpp"

#include <algorithm>
#include <bit>

#include "base/errors.hpp"

namespace oscar {
namespace {

constexpr double kWindowBits = 16;

/// b = bits + 2 p / G for one side.
double side_bits(const KvSide& side, int head_dim, double param_bits) {
  if (!side.quantized) return kWindowBits;
  const int group = side.codec.group_size == 0 ? head_dim : side.codec.group_size;
  const int code_bits = std::bit_width(static_cast<unsigned>(side.codec.levels - 1));
  return code_bits + 2 * param_bits / group;
}

double mean_bits(const KvMethod& method, double param_bits) {
  double sum = 0;
  for (const auto& [id, layer] : method.layers) {
    sum += side_bits(layer.key, layer.head_dim, param_bits) + side_bits(layer.value, layer.head_dim, param_bits);
  }
  return method.layers.empty() ? 0 : sum / (2 * static_cast<double>(method.layers.size()));
}

}  // namespace

std::string name_of(MethodKind kind) {
  switch (kind) {
    case MethodKind::kExact:
      return "exact";
    case MethodKind::kBaseline:
      return "baseline";
    case MethodKind::kThis:
      break;
  }
  return "this";
}

HistoryCodecs KvLayer::codecs() const {
  HistoryCodecs codecs;
  if (key.quantized) codecs.key = key.codec;
  if (value.quantized) codecs.value = value.codec;
  return codecs;
}

SequenceInput KvLayer::hold(const QkvView& qkv, std::span<const std::int64_t> query_positions,
                            Precision precision) const {
  return {qkv, query_positions, key.transform.get(), value.transform.get(), precision};
}

const KvLayer& KvMethod::layer(int layer_id) const {
  const auto found = layers.find(layer_id);
  if (found != layers.end()) return found->second;
  throw DataError("the method \"" + name + "\" has no layer " + std::to_string(layer_id),
                  "layer " + std::to_string(layer_id),
                  "use data of the same model, or --layers to leave this layer out");
}

BitsPerElement bits_per_element(const KvMethod& method, std::int64_t context) {
  const double window =
      std::min(1.0, static_cast<double>(method.windows.sink + method.windows.recent) / static_cast<double>(context));
  const auto at_context = [&](double bits) { return bits + window * (kWindowBits - bits); };
  const double fp16 = mean_bits(method, 16);
  const double fp32 = mean_bits(method, 32);
  return {fp16, fp32, at_context(fp16), at_context(fp32), context};
}

}  // namespace oscar
