// SPDX-License-Identifier: MIT
#include "codec/kv_method.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "codec/packing.hpp"
#include "kernels/backend.hpp"
#include "kernels/reference/coded_row.hpp"

namespace oscar {
namespace {

constexpr double kWindowBits = 16;

thread_local std::vector<std::vector<float>> spare_rows;

std::vector<float> take_spare_rows() {
  if (spare_rows.empty()) return {};
  std::vector<float> rows = std::move(spare_rows.back());
  spare_rows.pop_back();
  return rows;
}

double parameter_bits(const KvSide& side, int head_dim, double param_bits) {
  const int group = side.codec.group_size == 0 ? head_dim : side.codec.group_size;
  return 2 * param_bits / group;
}

/// Of the coded cache: parameters are counted in its rows.
double coded_bits(const std::vector<CodedFormat>& formats, int dim) {
  double bits = 0;
  for (const CodedFormat& format : formats) bits += 8 * static_cast<double>(reference::coded_row_bytes(format));
  return bits / (dim * static_cast<double>(formats.size()));
}

double side_bits(const KvSide& side, int dim, double param_bits) {
  if (side.quantized && side.codec.coded != nullptr) return coded_bits(*side.codec.coded, dim);
  return side.quantized ? bits_per_code(side.codec.levels, dim) + parameter_bits(side, dim, param_bits) : kWindowBits;
}

int value_dim_of(const KvLayer& layer) { return layer.value_dim > 0 ? layer.value_dim : layer.head_dim; }

/// Twice the mean of a layer's channels: where keys are as wide as values, of one of each together.
double pair_bits(const KvLayer& layer, double key, double value) {
  const int keys = layer.head_dim, values = value_dim_of(layer);
  return 2 * (keys * key + values * value) / (keys + values);
}

/// b = bits + 2 p / G for each side that is quantised.
double row_bits(const KvLayer& layer, double param_bits) {
  const KvSide &key = layer.key, &value = layer.value;
  const int keys = layer.head_dim, values = value_dim_of(layer);
  const bool coded = key.codec.coded != nullptr || value.codec.coded != nullptr;
  if (key.quantized && value.quantized && keys == values && !coded) {
    return bits_per_pair(key.codec.levels, value.codec.levels, keys) + parameter_bits(key, keys, param_bits) +
           parameter_bits(value, values, param_bits);
  }
  return pair_bits(layer, side_bits(key, keys, param_bits), side_bits(value, values, param_bits));
}

/// The same, whoever stores them.
double layer_bits(const KvMethod& method, const KvLayer& layer, double param_bits) {
  if (method.sequence == nullptr || !layer.key.quantized) return row_bits(layer, param_bits);
  const auto bits = [&](const SideMethod& side, int dim) {
    const StoredBits stored = side.bits({dim, layer.num_kv_heads});
    return stored.codes + param_bits * stored.parameters;
  };
  return pair_bits(layer, bits(method.sequence->key, layer.head_dim),
                   bits(method.sequence->value, value_dim_of(layer)));
}

double mean_bits(const KvMethod& method, double param_bits) {
  double sum = 0;
  for (const auto& [id, layer] : method.layers) sum += layer_bits(method, layer, param_bits);
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

DecodedRows::~DecodedRows() {
  constexpr std::size_t kKept = 2;  // keys and values
  if (rows.capacity() > 0 && spare_rows.size() < kKept) spare_rows.push_back(std::move(rows));
}

HeldSequence hold(const KvMethod& method, int layer_id, const QkvView& qkv,
                  std::span<const std::int64_t> query_positions, Precision precision, Backend& backend,
                  const ScoreRule* scores) {
  HeldSequence held;
  const KvLayer& layer = method.layer(layer_id);
  SequenceInput input = layer.hold(qkv, query_positions, precision);
  input.scores = scores;
  if (method.sequence != nullptr && layer.key.quantized) {
    const SequenceRange history{std::min<std::int64_t>(method.windows.sink, qkv.k.num_tokens), qkv.k.num_tokens};
    const SequenceContext context{method.rope, precision, &backend};
    const auto decode = [&](const SideMethod& side, HeadsView x, DecodedRows& decoded) {
      decoded.rows = reconstruct(side, x, history, context, take_spare_rows());
      return heads_view(decoded.rows, x.num_tokens, x.num_heads, x.head_dim);
    };
    input.decoded_k = decode(method.sequence->key, qkv.k, held.decoded_k);
    input.decoded_v = decode(method.sequence->value, qkv.v, held.decoded_v);
  }
  held.rows = backend.hold(input);
  return held;
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
