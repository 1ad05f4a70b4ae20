// SPDX-License-Identifier: MIT
#include "model/torch/weights.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "base/errors.hpp"
#include "model/weights/checkpoint.hpp"

namespace oscar {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{2} << 20;        // what readers hold stays in their caches
constexpr std::size_t kRemotePieceBytes = std::size_t{8} << 20;  // each is a request
constexpr std::size_t kReaders = 8;

std::size_t reader_count(std::size_t pieces, int wanted) {
  if (wanted > 0) return std::min(pieces, static_cast<std::size_t>(wanted));
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  return std::min({pieces, std::max<std::size_t>(1, cores / 2), kReaders});
}

/// Reads weights as they are stored from their files to a device, in pieces, by several threads. For a GPU each thread
/// passes pieces through pinned memory of its own, so that reading and uploading overlap.
class Fetch {
 public:
  Fetch(const WeightStore& store, const Device& device)
      : store_(store), device_(device), piece_bytes_(store.readers() > 0 ? kRemotePieceBytes : kPieceBytes) {}

  /// The stored type and shape (a scalar as [1]); the values are there after run(). Called on the loading stream.
  [[nodiscard]] at::Tensor want(const TensorRef& part) {
    const std::vector<std::int64_t> shape = part.shape.empty() ? std::vector<std::int64_t>{1} : part.shape;
    at::Tensor tensor = at::empty(shape, at::TensorOptions(stored_type(part.dtype)).device(device_.place()));
    auto* const to = static_cast<std::byte*>(tensor.data_ptr());
    for (std::size_t begin = 0; begin < part.data.size(); begin += piece_bytes_) {
      pieces_.push_back({part.data.subspan(begin, std::min(piece_bytes_, part.data.size() - begin)), to + begin});
    }
    return tensor;
  }

  void run() {
    const std::size_t readers = reader_count(pieces_.size(), store_.readers());
    std::atomic<std::size_t> next = 0;  // pieces differ in size by a thousand times
    const auto take = [&]() -> const Piece* {
      const std::size_t i = next++;
      return i < pieces_.size() ? &pieces_[i] : nullptr;
    };
    const auto work = [&] {
      const CallGuard guard(device_);
      if (device_.is_gpu()) return upload(take);
      while (const Piece* piece = take()) store_.read(piece->from, piece->to);
    };
    std::vector<std::future<void>> others;
    for (std::size_t i = 1; i < readers; ++i) others.push_back(std::async(std::launch::async, work));
    if (readers > 0) work();
    for (std::future<void>& other : others) other.get();
    pieces_.clear();
  }

 private:
  struct Piece {
    std::span<const std::byte> from;
    std::byte* to;  // on the device
  };

  /// Pieces that take() gives, through two places in pinned memory: one is filled while the other is on its way.
  void upload(const std::function<const Piece*()>& take) const {
    const c10::Stream stream = device_.new_stream();
    const c10::StreamGuard guard(stream);
    std::array<at::Tensor, 2> slots;
    std::array<std::optional<c10::Event>, 2> sent;
    std::size_t turn = 0;
    for (const Piece* piece = take(); piece != nullptr; piece = take(), turn = 1 - turn) {
      const auto size = static_cast<std::int64_t>(piece->from.size());
      at::Tensor& slot = slots[turn];
      if (!slot.defined()) slot = device_.host_bytes(static_cast<std::int64_t>(piece_bytes_));
      if (sent[turn]) sent[turn]->synchronize();
      store_.read(piece->from, static_cast<std::byte*>(slot.data_ptr()));
      at::from_blob(piece->to, {size}, at::TensorOptions(at::kByte).device(device_.place()))
          .copy_(slot.narrow(0, 0, size), /*non_blocking=*/true);
      if (!sent[turn]) sent[turn].emplace(device_.place().type());
      sent[turn]->record(stream);
    }
    stream.synchronize();
  }

  const WeightStore& store_;
  const Device& device_;
  std::size_t piece_bytes_;
  std::vector<Piece> pieces_;
};

constexpr std::int64_t kBlock = 128;  // of float8 scales, in all checkpoints; the last may be cut off

/// Scales (out / height, in / width) side by side with the elements (rows, columns) that they belong to; those for a
/// whole row, or for all, are left for broadcasting.
at::Tensor spread(const at::Tensor& scale, std::int64_t rows, std::int64_t columns, const std::string& name) {
  if (scale.numel() == 1) return scale.reshape({1, 1});
  const std::int64_t scale_rows = scale.size(0), scale_columns = scale.numel() / scale_rows;
  at::Tensor out = scale.reshape({scale_rows, scale_columns});
  const auto spread_over = [&](std::int64_t dim, std::int64_t size) {
    const std::int64_t count = out.size(dim);
    if (count == 1 || count == size) return true;
    if (count != (size + kBlock - 1) / kBlock) return false;
    out = out.repeat_interleave(kBlock, dim).narrow(dim, 0, size);
    return true;
  };
  if (spread_over(0, rows) && spread_over(1, columns)) return out;
  throw DataError("the scales " + shape_text({{scale_rows, scale_columns}}) + " do not fit the float8 weight " +
                      shape_text({{rows, columns}}),
                  name, "use a checkpoint with blocks of 128 x 128, or with one scale a row or a matrix");
}

/// Blocks of 32 four-bit floats, low nibble first, times 2^(scale - 127): (out, in / 32, 16) bytes -> (out, in).
at::Tensor unpack_mxfp4(const at::Tensor& blocks, const at::Tensor& scales, at::ScalarType dtype) {
  static std::array<float, 16> values{0, .5F, 1, 1.5F, 2, 3, 4, 6, -0.F, -.5F, -1, -1.5F, -2, -3, -4, -6};
  const at::Tensor table = at::from_blob(values.data(), {16}, at::kFloat).to(blocks.device());
  const at::Tensor low = blocks.bitwise_and(15), high = blocks.bitwise_right_shift(4);
  const at::Tensor codes = at::stack({low, high}, -1).to(at::kInt);
  // An exponent becomes a float by taking its place in one.
  const at::Tensor factors = scales.to(at::kInt).bitwise_left_shift(23).view(at::kFloat).unsqueeze(-1);
  const at::Tensor floats = at::index_select(table, 0, codes.flatten()).view({scales.size(0), scales.size(1), 32});
  return (floats * factors).to(dtype).view({scales.size(0), scales.size(1) * 32});
}

/// One weight in a form that checkpoints keep it in: floats, float8 with scales, MXFP4. Filled once the fetch that
/// wants it has run.
struct StoredWeight {
  at::Tensor value;
  at::Tensor scale;  // of float8 and MXFP4
  std::string name;
  TensorRef whole{};           // unless these are all of its rows: the matrix that they and the scales are of
  std::int64_t first_row = 0;  // in it

  /// What it stands for: matrices in `dtype`, vectors in fp32. Throws DataError for scales that do not fit.
  [[nodiscard]] at::Tensor unpack(at::ScalarType dtype) const {
    if (value.scalar_type() == at::kByte) return unpack_mxfp4(value, scale, dtype);
    const bool matrix = value.dim() >= 2 && value.size(0) > 1;
    if (!scale.defined()) return value.to(matrix ? dtype : at::kFloat);
    const std::int64_t rows = value.size(0), columns = value.numel() / rows;
    const at::Tensor floats = value.view({rows, columns}).to(at::kFloat), all = scale.to(at::kFloat);
    if (whole.shape.empty()) return (floats * spread(all, rows, columns, name)).to(dtype);
    const at::Tensor own = at::arange(first_row, first_row + rows, all.options().dtype(at::kLong));
    return (floats * scales_of_rows(all, own, whole, name)).to(dtype);
  }
};

/// A whole tensor that a file holds, or part `index` of a stack (count, …).
TensorRef slice(const TensorRef& stack, int index) {
  const std::size_t bytes = stack.data.size() / static_cast<std::size_t>(stack.shape[0]);
  return {stack.dtype,
          {stack.shape.begin() + 1, stack.shape.end()},
          stack.data.subspan(static_cast<std::size_t>(index) * bytes, bytes)};
}

StoredWeight want_weight(Fetch& fetch, const WeightStore& store, const std::string& name) {
  StoredWeight weight{fetch.want(store.at(name)), {}, name};
  if (is_float8(store.at(name).dtype)) weight.scale = fetch.want(store.at(scales_of(store, name)));
  return weight;
}

/// Part `index` of a stack of floats, or of float8 with scales.
StoredWeight want_slice(Fetch& fetch, const WeightStore& store, const std::string& name, int index) {
  StoredWeight weight{fetch.want(slice(store.at(name), index)), {}, name};
  if (!is_float8(store.at(name).dtype)) return weight;
  const TensorRef& scales = store.at(scales_of(store, name));
  if (scales.shape.empty() || scales.shape.front() != store.at(name).shape.front()) {
    throw DataError("the scales " + shape_text(scales.shape) + " do not fit the stack of float8 weights", name,
                    "use a checkpoint with scales for each expert");
  }
  weight.scale = fetch.want(slice(scales, index));
  return weight;
}

/// Part `index` of "<name>_blocks" (count, out, in / 32, 16) and "<name>_scales".
StoredWeight want_mxfp4(Fetch& fetch, const WeightStore& store, const std::string& name, int index) {
  return {fetch.want(slice(store.at(name + "_blocks"), index)), fetch.want(slice(store.at(name + "_scales"), index)),
          name};
}

/// Rows [begin, begin + count) of a fused matrix, and of its bias, under a name of their own.
void split_off(Weights& weights, const std::string& fused, std::int64_t begin, std::int64_t count,
               const std::string& part) {
  for (const char* kind : {".weight", ".bias"}) {
    if (weights.contains(fused + kind)) weights.put(part + kind, weights.at(fused + kind).narrow(0, begin, count));
  }
}

void split_qkv(Weights& weights) {
  const MixerSpec& m = weights.block().mixer;
  const std::int64_t queries = std::int64_t{m.num_heads} * m.head_dim;
  const std::int64_t keys = std::int64_t{m.num_kv_heads} * m.head_dim;
  split_off(weights, m.fused, 0, queries, "self_attn.q_proj");
  split_off(weights, m.fused, queries, keys, "self_attn.k_proj");
  split_off(weights, m.fused, queries + keys, std::int64_t{m.num_kv_heads} * m.value_dim, "self_attn.v_proj");
}

/// Per head: first the query, then the gate.
void split_output_gate(Weights& weights) {
  const MixerSpec& m = weights.block().mixer;
  for (const std::string kind : {".weight", ".bias"}) {
    if (!weights.contains("self_attn.q_proj" + kind)) continue;
    const at::Tensor both = weights.at("self_attn.q_proj" + kind);
    const at::Tensor heads = both.view({m.num_heads, 2, m.head_dim, both.numel() / both.size(0)});
    const auto half = [&](int i) {
      return both.dim() == 1 ? heads.select(1, i).reshape({-1}) : heads.select(1, i).reshape({-1, both.size(1)});
    };
    weights.put("self_attn.gate" + kind, half(1));
    weights.put("self_attn.q_proj" + kind, half(0));
  }
}

void take_apart(Weights& weights) {
  const MixerSpec& m = weights.block().mixer;
  const MlpSpec& mlp = weights.block().mlp;
  if (!m.fused.empty()) split_qkv(weights), weights.drop(m.fused);
  if (m.kind == MixerKind::kAttention && m.output_gate) split_output_gate(weights);
  if (!mlp.fused.empty() && mlp.experts.count == 0) {
    split_off(weights, mlp.fused, 0, mlp.intermediate, mlp.gate);
    split_off(weights, mlp.fused, mlp.intermediate, mlp.intermediate, mlp.up);
    weights.drop(mlp.fused);
  }
}

/// Rows [begin, end) of a matrix of floats, or of float8 with scales.
StoredWeight want_rows(Fetch& fetch, const WeightStore& store, const std::string& name, std::int64_t begin,
                       std::int64_t end) {
  const TensorRef& whole = store.at(name);
  TensorRef rows = whole;
  const std::size_t row_bytes = rows.data.size() / static_cast<std::size_t>(rows.shape[0]);
  rows.shape[0] = end - begin;
  rows.data =
      rows.data.subspan(static_cast<std::size_t>(begin) * row_bytes, static_cast<std::size_t>(end - begin) * row_bytes);
  StoredWeight weight{fetch.want(rows), {}, name, whole, begin};
  if (is_float8(whole.dtype)) weight.scale = fetch.want(store.at(scales_of(store, name)));
  return weight;
}

/// A layer's part of what makes inputs of layers, if there are any.
void want_layer_input(Fetch& fetch, const WeightRoute& route, const BlockSpec& block,
                      std::map<std::string, StoredWeight>& stored) {
  if (block.input_dim == 0) return;
  const std::int64_t dim = block.input_dim, begin = block.input_index * dim;
  stored["per_layer_model_projection.weight"] =
      want_rows(fetch, route.store, kLayerInputProjectionName, begin, begin + dim);
  stored["per_layer_projection_norm.weight"] = want_weight(fetch, route.store, kLayerInputNormName);
}

/// One expert as it is stored, by part ("gate.weight"); gate and up are one matrix, "gate", in stacks of both.
using StoredExpert = std::map<std::string, StoredWeight>;

StoredExpert want_expert(Fetch& fetch, const WeightStore& store, const ExpertsSpec& e, const std::string& prefix,
                         int expert) {
  StoredExpert out;
  if (e.layout == ExpertLayout::kSeparate) {
    const std::string own = prefix + std::to_string(expert) + ".";
    out["gate.weight"] = want_weight(fetch, store, own + e.gate_proj + ".weight");
    out["up.weight"] = want_weight(fetch, store, own + e.up_proj + ".weight");
    out["down.weight"] = want_weight(fetch, store, own + e.down_proj + ".weight");
    return out;
  }
  const auto want = e.layout == ExpertLayout::kMxfp4 ? want_mxfp4 : want_slice;
  const bool apart = e.layout == ExpertLayout::kStackedParts;
  const bool bias = apart ? e.bias : e.layout == ExpertLayout::kStackedTransposed || e.layout == ExpertLayout::kMxfp4;
  for (const std::string part : {"gate", "up", "down"}) {
    if (part == "up" && !apart) continue;
    const std::string name = prefix + (part == "gate" && !apart ? "gate_up_proj" : part + "_proj");
    out[part + ".weight"] = want(fetch, store, name, expert);
    if (bias) out[part + ".bias"] = want_slice(fetch, store, name + "_bias", expert);
  }
  return out;
}

void unpack_expert(const StoredExpert& stored, const ExpertsSpec& e, at::ScalarType dtype, Weights& out) {
  for (const auto& [name, weight] : stored) out.put(name, weight.unpack(dtype));
  if (stored.contains("up.weight")) return;
  if (e.layout == ExpertLayout::kStacked || e.layout == ExpertLayout::kStackedByInput) {
    const auto by_output = [&](const at::Tensor& x) {
      return e.layout == ExpertLayout::kStacked ? x : x.t().contiguous();
    };
    const at::Tensor both = by_output(out.at("gate.weight"));
    out.put("gate.weight", both.narrow(0, 0, e.intermediate));
    out.put("up.weight", both.narrow(0, e.intermediate, e.intermediate));
    out.put("down.weight", by_output(out.at("down.weight")));
    return;
  }
  // Gate and up rows alternate.
  const bool transposed = e.layout == ExpertLayout::kStackedTransposed;
  const auto every_other = [](const at::Tensor& x, int first) { return x.slice(0, first, x.size(0), 2).contiguous(); };
  const at::Tensor gate = out.at("gate.weight"), both = transposed ? gate.t() : gate, bias = out.at("gate.bias");
  out.put("gate.weight", every_other(both, 0));
  out.put("gate.bias", every_other(bias, 0));
  out.put("up.weight", every_other(both, 1));
  out.put("up.bias", every_other(bias, 1));
  if (transposed) out.put("down.weight", out.at("down.weight").t().contiguous());
}

}  // namespace

at::Tensor normalize(const at::Tensor& x, double eps) {
  const at::Tensor floats = x.to(at::kFloat);
  return floats * at::rsqrt(floats.pow(2).mean(-1, true) + eps);
}

namespace {

/// A float32 matrix (n, in) as bfloat16 (n, 3 in). Each value is the sum of a high and a low half, but for 2^-17 of it;
/// a factor of rows times one of a weight adds up the products of halves but that of both low ones.
at::Tensor factor(const at::Tensor& x, bool of_weight) {
  const at::Tensor high = x.to(at::kBFloat16), low = (x - high).to(at::kBFloat16);
  return at::cat({of_weight ? high : low, of_weight ? low : high, high}, 1);
}
constexpr const char* kFactor = " by halves";  // names that of a weight, behind the weight's name

}  // namespace

at::Tensor Weights::linear(const at::Tensor& x, const std::string& part) const {
  constexpr std::int64_t kManyRows = 128;  // fewer do not pay for their halves
  const std::string bias = part + ".bias", name = part + ".weight";
  const at::Tensor weight = at(name).to(x.scalar_type());
  const auto added = contains(bias) ? std::optional(at(bias).to(x.scalar_type())) : std::nullopt;
  const bool by_halves = contains(name + kFactor) && !at::GradMode::is_enabled() && x.numel() >= kManyRows * x.size(-1);
  if (!by_halves) return at::linear(x, weight, added);
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  const at::Tensor rows = factor(x.reshape({-1, x.size(-1)}), false);
  at::Tensor out = at::mm(rows, at(name + kFactor).t(), at::kFloat).view(shape);
  return added ? out.add_(*added) : out;
}

void Weights::prepare_products(const Device& device) {
  if (!device.multiplies_halves()) return;
  for (const auto& [name, tensor] : tensors_) {
    if (name.ends_with(".weight") && tensor.dim() == 2) put(name + kFactor, factor(tensor, true));
  }
}

at::Tensor Weights::exact_norm(const at::Tensor& x, const std::string& part) const {
  if (part.empty()) return x;
  const at::Tensor& weight = at(part + ".weight");
  const at::Tensor floats = x.to(at::kFloat);
  at::Tensor normed = normalize(config_.layer_norm ? floats - floats.mean(-1, true) : floats, config_.rms_norm_eps);
  normed.mul_(config_.norm_plus_one ? 1.0 + weight : weight);
  return contains(part + ".bias") ? normed.add_(at(part + ".bias")) : normed;
}

at::Tensor Weights::norm(const at::Tensor& x, const std::string& part) const {
  return exact_norm(x, part).to(x.scalar_type());
}

at::Tensor load_tensor(const WeightRoute& route, const std::string& name) {
  const SideStream loading(route.device, route.device.layer_stream(), SideStream::Starts::kNow);
  Fetch fetch(route.store, route.device);
  const StoredWeight stored = want_weight(fetch, route.store, name);
  fetch.run();
  at::Tensor loaded = stored.unpack(route.device.dtype());
  loading.finish();
  return loaded;
}

std::unique_ptr<Weights> load_layer_weights(const WeightRoute& route, int layer) {
  const SideStream loading(route.device, route.device.layer_stream(), SideStream::Starts::kNow);
  auto weights = std::make_unique<Weights>(route.config, route.config.block(layer));
  Fetch fetch(route.store, route.device);
  std::map<std::string, StoredWeight> stored;
  for (const WeightSpec& spec : layer_weights(route.config, layer)) {
    stored[spec.name] = want_weight(fetch, route.store, layer_weight_name(layer, spec.name));
  }
  want_layer_input(fetch, route, weights->block(), stored);
  fetch.run();
  for (auto& [name, weight] : stored) {
    weights->put(name, weight.unpack(route.device.dtype()));
    weight = {};
  }
  take_apart(*weights);
  weights->prepare_products(route.device);
  loading.finish();
  return weights;
}

std::vector<std::unique_ptr<LoadedWeights>> load_expert_weights(const WeightRoute& route, int layer,
                                                                std::span<const int> experts) {
  const SideStream loading(route.device, route.device.expert_stream(), SideStream::Starts::kNow);
  const BlockSpec& block = route.config.block(layer);
  const ExpertsSpec& e = block.mlp.experts;
  const std::string prefix = layer_weight_name(layer, e.prefix) + ".";
  Fetch fetch(route.store, route.device);
  std::vector<StoredExpert> stored;
  for (const int expert : experts) stored.push_back(want_expert(fetch, route.store, e, prefix, expert));
  fetch.run();
  std::vector<std::unique_ptr<LoadedWeights>> loaded;
  for (StoredExpert& expert : stored) {
    auto weights = std::make_unique<Weights>(route.config, block);
    unpack_expert(expert, e, route.device.dtype(), *weights);
    weights->prepare_products(route.device);
    expert = {};
    loaded.push_back(std::move(weights));
  }
  loading.finish();
  return loaded;
}

at::ScalarType stored_type(DType dtype) {
  static const std::map<DType, at::ScalarType> types{{DType::kF32, at::kFloat},
                                                     {DType::kBF16, at::kBFloat16},
                                                     {DType::kF16, at::kHalf},
                                                     {DType::kF8E4M3, at::kFloat8_e4m3fn},
                                                     {DType::kF8E5M2, at::kFloat8_e5m2},
                                                     {DType::kE8M0, at::kFloat8_e8m0fnu},
                                                     {DType::kU8, at::kByte}};
  const auto found = types.find(dtype);
  if (found != types.end()) return found->second;
  throw DataError("weights of " + std::string(name_of(dtype)) + " cannot be computed with", "", "");
}

std::string scales_of(const WeightStore& store, const std::string& name) {
  return store.contains(name + "_scale") ? name + "_scale" : name + "_scale_inv";
}

at::Tensor scales_of_rows(const at::Tensor& scale, const at::Tensor& rows, const TensorRef& matrix,
                          const std::string& name) {
  const std::int64_t count = scale.dim() == 0 ? 1 : scale.size(0), all = matrix.shape[0], columns = matrix.shape[1];
  const bool whole = scale.numel() == 1 || count == 1, blocks = count == (all + kBlock - 1) / kBlock && count != all;
  const at::Tensor own = whole ? scale : scale.index_select(0, blocks ? at::floor_divide(rows, kBlock) : rows);
  return spread(own, rows.numel(), columns, name).expand({rows.numel(), columns});
}

}  // namespace oscar
