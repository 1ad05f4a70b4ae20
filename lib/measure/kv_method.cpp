// SPDX-License-Identifier: MIT
#include "measure/kv_method.hpp"

#include <algorithm>
#include <bit>
#include <memory>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "kernels/backend.hpp"
#include "kernels/reference/coded_row.hpp"
#include "set/set.hpp"

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

/// Bits of one code in a row of them, which fills whole bytes.
double code_bits(const RowCodec& codec, int head_dim) {
  const int row_bits = std::bit_width(static_cast<unsigned>(codec.levels - 1)) * head_dim;
  return 8.0 * ((row_bits + 7) / 8) / head_dim;
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

double side_bits(const KvSide& side, const KvShape& shape, double param_bits) {
  const int dim = shape.head_dim;
  if (side.quantized && side.method != nullptr) {
    const StoredBits stored = side.method->bits(shape);
    return stored.codes + param_bits * stored.parameters;
  }
  if (side.quantized && side.codec.coded != nullptr) return coded_bits(*side.codec.coded, dim);
  return side.quantized ? code_bits(side.codec, dim) + parameter_bits(side, dim, param_bits) : kWindowBits;
}

int value_dim_of(const KvLayer& layer) { return layer.value_dim > 0 ? layer.value_dim : layer.head_dim; }

/// b = bits + 2 p / G for each side that is quantised by a row codec. Twice the mean of a layer's channels: where keys
/// are as wide as values, of one of each together.
double row_bits(const KvLayer& layer, double param_bits) {
  const KvSide &key = layer.key, &value = layer.value;
  const int keys = layer.head_dim, values = value_dim_of(layer);
  const auto is_row_codec = [](const KvSide& side) {
    return side.quantized && side.method == nullptr && side.codec.coded == nullptr;
  };
  if (is_row_codec(key) && is_row_codec(value) && keys == values) {
    return code_bits(key.codec, keys) + code_bits(value.codec, values) + parameter_bits(key, keys, param_bits) +
           parameter_bits(value, values, param_bits);
  }
  const double key_bits = side_bits(key, {keys, layer.num_kv_heads}, param_bits);
  const double value_bits = side_bits(value, {values, layer.num_kv_heads}, param_bits);
  return 2 * (keys * key_bits + values * value_bits) / (keys + values);
}

double mean_bits(const KvMethod& method, double param_bits) {
  double sum = 0;
  for (const auto& [id, layer] : method.layers) sum += row_bits(layer, param_bits);
  return method.layers.empty() ? 0 : sum / (2 * static_cast<double>(method.layers.size()));
}

/// Calls change(first token, tokens) for blocks of tokens, on all threads.
template <class Change>
void for_token_blocks(std::int64_t tokens, const Change& change) {
  constexpr std::int64_t kTokens = 256;
  parallel_for(static_cast<std::size_t>((tokens + kTokens - 1) / kTokens), [&](std::size_t block) {
    const std::int64_t first = static_cast<std::int64_t>(block) * kTokens;
    change(first, std::min(kTokens, tokens - first));
  });
}

/// rows = x, rounded to bfloat16 when serving.
void take_stored_rows(HeadsView x, Precision precision, std::vector<float>& rows) {
  const auto width = static_cast<std::size_t>(x.num_heads * x.head_dim);
  rows.resize(static_cast<std::size_t>(x.num_tokens) * width);
  for_token_blocks(x.num_tokens, [&](std::int64_t first, std::int64_t count) {
    const auto part =
        std::span(rows).subspan(static_cast<std::size_t>(first) * width, static_cast<std::size_t>(count) * width);
    x.token_rows(first, count, part.data());
    if (precision == Precision::kServing && x.dtype != DType::kBF16) round_to_bf16(part);
  });
}

}  // namespace

void History::store() const {
  if (context.precision != Precision::kServing) return;
  const auto width = static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim);
  for_token_blocks(tokens, [&](std::int64_t first, std::int64_t count) {
    round_to_bf16(rows.subspan(static_cast<std::size_t>(first) * width, static_cast<std::size_t>(count) * width));
  });
}

std::vector<float> reconstruct(const SideMethod& side, HeadsView x, SequenceRange range, const SequenceContext& context,
                               std::vector<float> rows) {
  OSCAR_CHECK(0 <= range.begin && range.end <= x.num_tokens);
  take_stored_rows(x, context.precision, rows);
  if (range.size() <= 0) return rows;
  const std::size_t width = rows.size() / static_cast<std::size_t>(x.num_tokens);
  const auto part = std::span(rows).subspan(static_cast<std::size_t>(range.begin) * width,
                                            static_cast<std::size_t>(range.size()) * width);
  const History history{part, range.size(), x.num_heads, x.head_dim, range.begin, context};
  side.reconstruct(history);
  history.store();
  return rows;
}

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
  const SequenceRange history{std::min<std::int64_t>(method.windows.sink, qkv.k.num_tokens), qkv.k.num_tokens};
  const auto decode = [&](const KvSide& side, HeadsView x, DecodedRows& decoded) -> HeadsView {
    if (side.method == nullptr || !side.quantized) return {};
    decoded.rows = reconstruct(*side.method, x, history, {layer.rotary, precision, &backend}, take_spare_rows());
    return heads_view(decoded.rows, x.num_tokens, x.num_heads, x.head_dim);
  };
  input.decoded_k = decode(layer.key, qkv.k, held.decoded_k);
  input.decoded_v = decode(layer.value, qkv.v, held.decoded_v);
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

namespace {

/// published_clip: the clip ratio of rotations that do not say their own.
KvSide side_of(const RotationPart& part, const SideTransform& transform, RowCodec codec, double published_clip) {
  KvSide side;
  side.transform = std::make_shared<const Transform>(transform);
  codec.clip_ratio = part.has_clip_ratios ? transform.clip_ratio : published_clip;
  side.codec = {codec, transform.head_clip_ratios};
  return side;
}

/// Keys that are stored before RoPE, as turn_stored() says, coded in the basis of their pairs.
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
    for (const int pair : pairs_of(write, *side->rotary)) {
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
    std::vector<float> coded(static_cast<std::size_t>(history.tokens) * dim);
    const auto row_of = [&](std::size_t t) {
      return history.rows.subspan(t * step + static_cast<std::size_t>(head) * dim, dim);
    };
    for (std::size_t t = 0; t * dim < coded.size(); ++t) {
      const std::span<const float> x = row_of(t);
      for (std::size_t c = 0; c < dim; ++c) {
        const Coordinate& y = own[c];
        coded[t * dim + c] = x[y.i] * y.write_i + x[y.j] * y.write_j;
      }
    }
    const Precision precision = history.context.precision;
    if (precision == Precision::kServing) round_to_bf16(coded);
    HistoryCodec codec;
    codec.coded = std::make_shared<const std::vector<CodedFormat>>(1, side->formats[static_cast<std::size_t>(head)]);
    history.context.backend->quantize(coded, history.dim, codec, precision, coded);
    for (std::size_t t = 0; t * dim < coded.size(); ++t) {
      const std::span<float> x = row_of(t);
      std::ranges::fill(x, 0.0F);
      for (std::size_t c = 0; c < dim; ++c) {
        x[own[c].i] += coded[t * dim + c] * own[c].read_i, x[own[c].j] += coded[t * dim + c] * own[c].read_j;
      }
    }
  }

  void operator()(const History& history) const {
    const auto turn = [&](Turn way) {
      turn_stored(*side->rotary, way, side->transform.mean, history.rows, history.heads, history.first_position);
    };
    turn(Turn::kBack);
    for (int head = 0; head < history.heads; ++head) code_head(history, head);
    turn(Turn::kForth);
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
