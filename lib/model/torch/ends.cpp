// SPDX-License-Identifier: MIT
#include "model/torch/ends.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "base/errors.hpp"
#include "model/torch/weights.hpp"
#include "model/weights/checkpoint.hpp"

namespace oscar {
namespace {

/// Columns [begin, begin + count) of the tokens' rows, (T, count), in the device's type. The table is of a float type,
/// or float8 with scales.
at::Tensor token_rows(const WeightRoute& route, const char* table, std::span<const std::int32_t> tokens,
                      std::int64_t begin, std::int64_t count) {
  const TensorRef& stored = route.store.at(table);
  const at::ScalarType type = stored_type(stored.dtype);
  const auto size = static_cast<std::int64_t>(c10::elementSize(type)), rows = static_cast<std::int64_t>(tokens.size());
  const at::Tensor bytes = route.device.host_bytes(rows * count * size);
  route.store.read_rows(stored, tokens, static_cast<std::size_t>(begin * size), static_cast<std::size_t>(count * size),
                        static_cast<std::byte*>(bytes.data_ptr()));
  const at::Tensor values = bytes.view(type).view({rows, count}).to(route.device.place());
  if (!is_float8(stored.dtype)) return values.to(route.device.dtype());
  const at::Tensor ids = at::from_blob(const_cast<std::int32_t*>(tokens.data()), {rows}, at::kInt).to(at::kLong);
  const at::Tensor scales = load_tensor(route, scales_of(route.store, table)).to(at::kFloat);
  const at::Tensor own = scales_of_rows(scales, ids.to(route.device.place()), stored, table).narrow(1, begin, count);
  return (values.to(at::kFloat) * own).to(route.device.dtype());
}

}  // namespace

at::Tensor embedded(const WeightRoute& route, std::span<const std::int32_t> tokens) {
  const at::Tensor x = token_rows(route, kEmbeddingName, tokens, 0, route.config.hidden_size);
  return route.config.embedding_scale == 1 ? x : x * route.config.embedding_scale;
}

at::Tensor left_behind(const WeightRoute& route, const Weights& layer, const at::Tensor& x, const HiddenRows& hidden) {
  const std::int64_t dim = layer.block().input_dim;
  if (dim == 0) return scaled(layer, x);
  const at::Tensor own = token_rows(route, kLayerInputsName, hidden.tokens, layer.block().input_index * dim, dim);
  return scaled(layer, with_layer_input(layer, x, hidden.embedding.to(route.device.place()), own));
}

namespace {

/// Logits that are multiplied at a time.
constexpr std::int64_t kLogitsAtOnce = std::int64_t{1} << 24;
/// Logits that are worked on in fp64 at a time; on the CPU by each thread.
constexpr std::int64_t kDoubles = std::int64_t{1} << 19, kGpuDoubles = std::int64_t{1} << 22;

}  // namespace

std::unique_ptr<Weights> load_head_weights(const WeightRoute& route) {
  auto weights = std::make_unique<Weights>(route.config, route.config.blocks.front());
  weights->put("norm.weight", load_tensor(route, kFinalNormName));
  if (route.config.norm_bias) weights->put("norm.bias", load_tensor(route, kFinalNormBiasName));
  weights->put("head.weight", load_tensor(route, head_weight_name(route.config)));
  weights->prepare_products(route.device);
  return weights;
}

void finish_logits(const Weights& head, at::Tensor& logits) {
  if (head.config().logit_scale != 1) logits.mul_(head.config().logit_scale);
  const double cap = head.config().logit_soft_cap;
  if (cap > 0) logits.div_(cap).tanh_().mul_(cap);
}

void write_logits(const Weights& head, const at::Tensor& hidden, std::span<float> logits) {
  const at::Tensor& matrix = head.at("head.weight");
  const std::int64_t vocab = matrix.size(0), all = hidden.size(0);
  OSCAR_CHECK(std::ssize(logits) == all * vocab);
  const at::Tensor normed = head.norm(hidden, "norm");
  at::Tensor out = at::from_blob(logits.data(), {all, vocab}, at::kFloat);
  const std::int64_t at_once = std::max<std::int64_t>(1, kLogitsAtOnce / vocab);
  for (std::int64_t token = 0; token < all; token += at_once) {
    const std::int64_t count = std::min(all - token, at_once);
    out.narrow(0, token, count).copy_(at::linear(normed.narrow(0, token, count), matrix));
  }
  finish_logits(head, out);
}

namespace {

/// What rows of logits predict, and where their most likely tokens are: log-probabilities (n, vocab_size) in fp64.
struct Predictions {
  at::Tensor logs, top;

  explicit Predictions(const at::Tensor& logits)
      : logs(at::log_softmax(logits, -1, at::kDouble)), top(logits.argmax(-1)) {}
  [[nodiscard]] at::Tensor of(const at::Tensor& tokens) const { return logs.gather(-1, tokens).squeeze(-1); }
};

/// The fields of PositionFigures, (n, 6). tokens: (n, 1), those that came next.
at::Tensor figures_of(const Predictions& p, const Predictions& q, const at::Tensor& tokens) {
  constexpr double kLowestCounted = -16;  // llama.cpp counts tokens whose exact log-probability is above this only
  const at::Tensor log_p = p.of(tokens), log_q = q.of(tokens);
  const at::Tensor terms = (p.logs - q.logs).mul_(p.logs.exp()).masked_fill_(p.logs <= kLowestCounted, 0);
  const at::Tensor same = (p.top == q.top).to(at::kDouble), right = (q.top == tokens.squeeze(-1)).to(at::kDouble);
  return at::stack({-log_q, log_p - log_q, terms.sum(-1), log_q.exp() - log_p.exp(), same, right}, 1);
}

}  // namespace

void compare_predictions(const Weights& head, const at::Tensor& exact, std::span<const at::Tensor> others,
                         std::span<const std::int32_t> next, std::span<const std::span<PositionFigures>> out) {
  const auto logits_of = [&](const at::Tensor& hidden) {
    at::Tensor logits = head.linear(head.norm(hidden, "norm"), "head").to(at::kFloat);
    finish_logits(head, logits);
    return logits;
  };
  OSCAR_CHECK(std::ssize(next) == exact.size(0));
  const at::Tensor tokens = at::from_blob(const_cast<std::int32_t*>(next.data()), {exact.size(0), 1}, at::kInt)
                                .to(at::kLong)
                                .to(exact.device());
  const at::Tensor exact_logits = logits_of(exact);
  const std::int64_t doubles = exact.is_cpu() ? kDoubles : kGpuDoubles;
  const std::int64_t at_once = std::max<std::int64_t>(1, doubles / exact_logits.size(1));
  for (std::size_t run = 0; run < others.size(); ++run) {
    OSCAR_CHECK(others[run].size(0) == exact.size(0) && std::ssize(out[run]) == exact.size(0));
    const at::Tensor logits = others[run].is_same(exact) ? exact_logits : logits_of(others[run]);
    std::vector<at::Tensor> parts;
    for (std::int64_t begin = 0; begin < logits.size(0); begin += at_once) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, std::min(at_once, x.size(0) - begin)); };
      const Predictions p(part(exact_logits));
      parts.push_back(figures_of(p, logits.is_same(exact_logits) ? p : Predictions(part(logits)), part(tokens)));
    }
    const at::Tensor figures = at::cat(parts).cpu();
    const double* row = figures.const_data_ptr<double>();
    for (PositionFigures& each : out[run]) {
      each = {row[0], row[1], row[2], row[3], row[4] != 0, row[5] != 0};
      row += figures.size(1);
    }
  }
}

}  // namespace oscar
