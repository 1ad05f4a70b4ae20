// SPDX-License-Identifier: MIT
// The gated delta rule: per value head a state S (d_k, d_v), and per token
//   S = exp(g) S;  S = S + beta k (v - S^T k)^T;  o = S^T q
// computed in fp32 by chunks: inside a chunk the updates solve a triangular system.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "model/torch/layer_math.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kChunk = 64;
constexpr double kUnitEpsilon = 1e-6;

/// q, k, v side by side (T, 2 keys + values), the output gate z (T, values), and beta's and the decay's inputs (T, Hv).
struct Inputs {
  at::Tensor qkv, gate, beta, decay;
};

/// Fused matrices hold, per key head, its query, key, and the values and gates of its value heads.
Inputs read_fused(const Weights& w, const at::Tensor& x) {
  const MixerSpec& m = w.block().mixer;
  const std::int64_t tokens = x.size(0), share = m.num_heads / m.num_kv_heads, values = share * m.value_dim;
  const at::Tensor all = w.linear(x, "linear_attn.in_proj_qkvz").view({tokens, m.num_kv_heads, -1});
  const at::Tensor two = w.linear(x, "linear_attn.in_proj_ba").view({tokens, m.num_kv_heads, 2 * share});
  const auto part = [&](std::int64_t begin, std::int64_t size) {
    return all.narrow(-1, begin, size).reshape({tokens, -1});
  };
  const at::Tensor qkv = at::cat({part(0, m.head_dim), part(m.head_dim, m.head_dim), part(2 * m.head_dim, values)}, -1);
  return {qkv, part(2 * m.head_dim + values, values), two.narrow(-1, 0, share).reshape({tokens, -1}),
          two.narrow(-1, share, share).reshape({tokens, -1})};
}

Inputs read_inputs(const Weights& w, const at::Tensor& x) {
  if (w.block().mixer.fused_delta) return read_fused(w, x);
  return {w.linear(x, "linear_attn.in_proj_qkv"), w.linear(x, "linear_attn.in_proj_z"),
          w.linear(x, "linear_attn.in_proj_b"), w.linear(x, "linear_attn.in_proj_a")};
}

/// Each channel sees its last conv_width tokens.
at::Tensor causal_convolution(const Weights& w, const at::Tensor& x) {
  const std::int64_t width = w.block().mixer.conv_width;
  const at::Tensor before = at::zeros({width - 1, x.size(1)}, x.options());
  const at::Tensor padded = at::cat({before, x}, 0).t().unsqueeze(0);
  const at::Tensor y = at::conv1d(padded, w.at("linear_attn.conv1d.weight").to(x.scalar_type()), std::nullopt,
                                  at::IntArrayRef{1}, at::IntArrayRef{0}, 1, x.size(1));
  return at::silu(y.squeeze(0).t());
}

/// (T, heads * d) -> (Hv, T, d); key heads repeat for their value heads.
at::Tensor heads_first(const at::Tensor& x, std::int64_t heads, std::int64_t repeats) {
  const at::Tensor y = x.reshape({x.size(0), heads, -1}).transpose(0, 1);
  return repeats == 1 ? y : y.repeat_interleave(repeats, 0);
}

at::Tensor unit(const at::Tensor& x) { return x * at::rsqrt(x.pow(2).sum(-1, true) + kUnitEpsilon); }

/// q, k (H, T, d_k), v (H, T, d_v), decay = g and beta (H, T) -> o (H, T, d_v).
at::Tensor delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& decay,
                      const at::Tensor& beta) {
  at::Tensor state = at::zeros({q.size(0), k.size(2), v.size(2)}, q.options());
  const at::Tensor out = at::empty(v.sizes(), q.options());
  for (std::int64_t begin = 0; begin < q.size(1); begin += kChunk) {
    const std::int64_t size = std::min(kChunk, q.size(1) - begin);
    const auto rows = [&](const at::Tensor& x) { return x.narrow(1, begin, size); };
    const at::Tensor total = at::cumsum(rows(decay), 1);  // (H, C): log of what is left of the state before the chunk
    const at::Tensor between = (total.unsqueeze(2) - total.unsqueeze(1)).tril().exp().tril();
    const at::Tensor since = total.exp().unsqueeze(2);
    const at::Tensor keys = rows(k), weighted = keys * rows(beta).unsqueeze(2);
    // u_i = beta_i (v_i - S^T k_i - sum_{j<i} decay_ij (k_i . k_j) u_j)
    const at::Tensor system = at::matmul(weighted, keys.transpose(1, 2)) * between;
    const at::Tensor wanted = rows(v) * rows(beta).unsqueeze(2) - at::matmul(weighted * since, state);
    const at::Tensor updates = at::linalg_solve_triangular(system, wanted, false, true, true);
    const at::Tensor scores = at::matmul(rows(q), keys.transpose(1, 2)) * between;
    rows(out).copy_(at::matmul(rows(q) * since, state) + at::matmul(scores, updates));
    const at::Tensor last = total.narrow(1, size - 1, 1);
    state = state * last.exp().unsqueeze(2) +
            at::matmul((keys * (last - total).exp().unsqueeze(2)).transpose(1, 2), updates);
  }
  return out;
}

}  // namespace

at::Tensor gated_delta(const Weights& layer, const at::Tensor& x) {
  const MixerSpec& m = layer.block().mixer;
  const std::int64_t keys = std::int64_t{m.num_kv_heads} * m.head_dim, repeats = m.num_heads / m.num_kv_heads;
  const Inputs stored = read_inputs(layer, layer.norm(x, layer.block().mixer_norm));
  const Inputs in{stored.qkv.to(at::kFloat), stored.gate.to(at::kFloat), stored.beta.to(at::kFloat),
                  stored.decay.to(at::kFloat)};
  const at::Tensor mixed = causal_convolution(layer, in.qkv);
  const at::Tensor q = unit(heads_first(mixed.narrow(1, 0, keys), m.num_kv_heads, repeats));
  const at::Tensor k = unit(heads_first(mixed.narrow(1, keys, keys), m.num_kv_heads, repeats));
  const at::Tensor v = heads_first(mixed.narrow(1, 2 * keys, mixed.size(1) - 2 * keys), m.num_heads, 1);
  const at::Tensor decay =
      -layer.at("linear_attn.A_log").exp() * at::softplus(in.decay + layer.at("linear_attn.dt_bias"));
  const at::Tensor out = delta_rule(q / std::sqrt(static_cast<double>(m.head_dim)), k, v, decay.t().contiguous(),
                                    at::sigmoid(in.beta).t().contiguous())
                             .transpose(0, 1);
  const at::Tensor normed = layer.at("linear_attn.norm.weight") * normalize(out, layer.config().rms_norm_eps);
  const at::Tensor gated = normed * at::silu(in.gate.reshape(out.sizes()));
  const at::Tensor out_rows = gated.reshape({x.size(0), -1}).to(x.scalar_type());
  return layer.norm(layer.linear(out_rows, "linear_attn.out_proj"), layer.block().mixer_out_norm);
}

}  // namespace oscar
