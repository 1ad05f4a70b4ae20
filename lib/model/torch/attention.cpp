// SPDX-License-Identifier: MIT
// The gated delta rule: per value head a state S (d_k, d_v), and per token
//   S = exp(g) S;  S = S + beta k (v - S^T k)^T;  o = S^T q
// computed in fp32 by chunks: inside a chunk the updates solve a triangular system.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "model/config/config.hpp"
#include "model/torch/layer_math.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kQueryBlock = 256;                // at least
constexpr std::int64_t kScores = std::int64_t{1} << 26;  // in memory at a time on a GPU

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

std::int64_t queries_at_once(const at::Tensor& q) {
  return q.is_cpu() ? kQueryBlock : std::max(kQueryBlock, kScores / (q.size(0) * q.size(1)));
}

ScoreBlock score_block(const MixerSpec& mixer, const at::Tensor& q, const at::Tensor& k, std::int64_t begin,
                       std::int64_t end) {
  ScoreBlock block{begin, end, mixer.window > 0 ? std::max<std::int64_t>(0, begin - mixer.window + 1) : 0, {}, {}, {}};
  const double scale = 1 / std::sqrt(static_cast<double>(mixer.head_dim));
  block.scores = at::matmul(block.of_queries(q), block.of_keys(k).transpose(1, 2)) * scale;
  if (mixer.soft_cap > 0) {
    const at::Tensor part = at::tanh(block.scores / mixer.soft_cap);
    block.scores = part * mixer.soft_cap;
    block.slope = 1 - part * part;
  }
  const auto positions = [&](std::int64_t from) { return at::arange(from, end, q.options().dtype(at::kLong)); };
  block.behind = positions(begin).unsqueeze(1) - positions(block.first).unsqueeze(0);
  at::Tensor hidden = block.behind < 0;
  if (mixer.window > 0) hidden = hidden.logical_or(block.behind >= mixer.window);
  block.scores = block.scores.masked_fill(hidden, -std::numeric_limits<float>::infinity());
  return block;
}

at::Tensor ScoreBlock::shares(const at::Tensor& sinks) const {
  if (!sinks.defined()) return at::softmax(scores, -1);
  const at::Tensor all = at::cat({scores, sinks.expand({scores.size(0), end - begin, 1})}, -1);
  return at::softmax(all, -1).narrow(-1, 0, end - first);
}

namespace {

/// Rotary embeddings of positions [first, end): some variants depend on `end`, as if the text had begun at 0.
class RotaryEmbedding {
 public:
  RotaryEmbedding(const RopeSpec& spec, std::int64_t first, std::int64_t end, c10::Device device) : spec_(spec) {
    const at::Tensor positions = at::arange(first, end, at::TensorOptions(at::kFloat).device(device));
    std::vector<float> frequencies = inverse_frequencies(spec, end);
    const at::Tensor inverse =
        at::from_blob(frequencies.data(), {static_cast<std::int64_t>(frequencies.size())}, at::kFloat).to(device);
    const at::Tensor angles = (positions.unsqueeze(-1) * inverse).unsqueeze(1);
    cosine_ = angles.cos() * spec.attention_factor;
    sine_ = angles.sin() * spec.attention_factor;
  }
  /// rows (T, heads, d), d at least spec.dim. In fp32.
  [[nodiscard]] at::Tensor apply(const at::Tensor& rows) const {
    const at::Tensor x = rows.to(at::kFloat);
    const at::Tensor turning = x.narrow(-1, 0, spec_.dim);
    const bool pairs = spec_.interleaved;
    const at::Tensor first = pairs ? turning.slice(-1, 0, spec_.dim, 2) : turning.narrow(-1, 0, spec_.dim / 2);
    const at::Tensor second =
        pairs ? turning.slice(-1, 1, spec_.dim, 2) : turning.narrow(-1, spec_.dim / 2, spec_.dim / 2);
    const at::Tensor a = (first * cosine_).sub_(second * sine_), b = (second * cosine_).add_(first * sine_);
    const at::Tensor turned = pairs && !spec_.split_pairs ? at::stack({a, b}, -1).flatten(-2) : at::cat({a, b}, -1);
    if (spec_.dim == x.size(-1)) return turned;
    return at::cat({turned, x.narrow(-1, spec_.dim, x.size(-1) - spec_.dim)}, -1);
  }

 private:
  const RopeSpec& spec_;
  at::Tensor cosine_, sine_;  // (T, 1, dim / 2)
};

/// Queries such that scores are q . k / sqrt(d), as everything after the model takes them.
at::Tensor rescaled(const at::Tensor& q, const MixerSpec& m) {
  const double factor = m.softmax_scale * std::sqrt(static_cast<double>(m.head_dim));
  return std::abs(factor - 1) < 1e-12 ? q : q * factor;
}

/// (T, heads, d), normed and turned in fp32.
at::Tensor project_heads(const Weights& w, const at::Tensor& x, const RotaryEmbedding& rope, const char* part,
                         const std::string& norm, int heads) {
  const MixerSpec& m = w.block().mixer;
  const bool each = m.head_norm == HeadNorm::kPerHead;
  at::Tensor y = w.linear(x, part);
  if (m.head_norm == HeadNorm::kAllHeads) y = w.exact_norm(y, norm);
  y = y.view({x.size(0), heads, m.head_dim});
  if (each && !m.norm_after_rope) y = w.exact_norm(y, norm);
  y = rope.apply(y);
  return each && m.norm_after_rope ? w.exact_norm(y, norm) : y;
}

/// Queries as later positions ask louder, where they do.
at::Tensor grown(const at::Tensor& q, const MixerSpec& m, std::int64_t first) {
  if (m.query_growth == 0) return q;
  const at::Tensor positions = at::arange(first, first + q.size(0), q.options());
  const at::Tensor contexts = at::floor(positions / m.rope.original_context);
  return q * (at::log1p(contexts) * m.query_growth + 1).view({-1, 1, 1});
}

/// kv_b_proj as (heads, nope + value, latent): how heads read the latent.
at::Tensor latent_readers(const Weights& w) {
  const MixerSpec& m = w.block().mixer;
  return w.at("self_attn.kv_b_proj.weight").view({m.num_heads, m.nope_dim + m.head_value_dim, m.latent_dim});
}

/// The cache holds (latent, rotated key); queries are taken to the latent's side, so that heads share one key.
Projected project_latent(const Weights& w, const at::Tensor& normed, std::int64_t first) {
  const MixerSpec& m = w.block().mixer;
  const std::int64_t tokens = normed.size(0);
  const at::Tensor query_source =
      m.query_latent_dim > 0
          ? w.linear(w.norm(w.linear(normed, "self_attn.q_a_proj"), "self_attn.q_a_layernorm"), "self_attn.q_b_proj")
          : w.linear(normed, "self_attn.q_proj");
  const at::Tensor q = query_source.view({tokens, m.num_heads, m.nope_dim + m.rope.dim});
  const at::Tensor both = w.linear(normed, "self_attn.kv_a_proj_with_mqa");
  const at::Tensor latent = w.norm(both.narrow(-1, 0, m.latent_dim), "self_attn.kv_a_layernorm").unsqueeze(1);
  const RotaryEmbedding rope(m.rope, first, first + tokens, normed.device());
  const at::ScalarType type = normed.scalar_type();
  const at::Tensor readers = latent_readers(w).narrow(1, 0, m.nope_dim);
  const at::Tensor absorbed = at::bmm(q.narrow(-1, 0, m.nope_dim).transpose(0, 1), readers).transpose(0, 1);
  const at::Tensor turned_q = rope.apply(q.narrow(-1, m.nope_dim, m.rope.dim)).to(type);
  const at::Tensor turned_k = rope.apply(both.narrow(-1, m.latent_dim, m.rope.dim).unsqueeze(1)).to(type);
  return {rescaled(at::cat({absorbed, turned_q}, -1), m), at::cat({latent, turned_k}, -1), latent};
}

/// Heads h, T, d of q with theirs of k and v, in fp32, for what the library's kernels lack: windows, soft caps, sinks
/// (h, 1, 1), values of another size.
at::Tensor attend_by_blocks(const MixerSpec& m, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& sinks) {
  const std::int64_t tokens = q.size(1), at_once = queries_at_once(q);
  const at::Tensor out = at::empty({q.size(0), tokens, v.size(2)}, q.options());
  for (std::int64_t begin = 0; begin < tokens; begin += at_once) {
    const ScoreBlock block = score_block(m, q, k, begin, std::min(tokens, begin + at_once));
    out.narrow(1, begin, block.end - begin).copy_(at::matmul(block.shares(sinks), block.of_keys(v)));
  }
  return out;
}

/// The library's kernel: (heads, T, d) of q, and of k and v, which in bf16 may have fewer heads.
at::Tensor attend_plainly(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto batch = [](const at::Tensor& x) { return x.unsqueeze(0); };
  return at::scaled_dot_product_attention(batch(q), batch(k), batch(v), {}, 0.0, /*is_causal=*/true, std::nullopt,
                                          /*enable_gqa=*/k.size(0) != q.size(0))
      .squeeze(0);
}

}  // namespace

Projected project_attention(const Weights& w, const at::Tensor& x, std::int64_t first) {
  const MixerSpec& m = w.block().mixer;
  const at::Tensor normed = w.norm(x, w.block().mixer_norm);
  if (m.kind == MixerKind::kLatentAttention) return project_latent(w, normed, first);
  const RotaryEmbedding rope(m.rope, first, first + normed.size(0), normed.device());
  const at::ScalarType type = normed.scalar_type();
  const at::Tensor heads = project_heads(w, normed, rope, "self_attn.q_proj", m.query_norm, m.num_heads);
  const at::Tensor q = rescaled(grown(heads, m, first), m).to(type);
  if (!m.own_kv) return {q, {}, {}};
  const at::Tensor k = project_heads(w, normed, rope, "self_attn.k_proj", m.key_norm, m.num_kv_heads);
  const char* source = m.value_is_key ? "self_attn.k_proj" : "self_attn.v_proj";
  at::Tensor v = w.linear(normed, source).view({normed.size(0), m.num_kv_heads, m.value_dim});
  if (m.value_norm) v = normalize(v, w.config().rms_norm_eps);
  return {q, k.to(type), v.to(type)};
}

at::Tensor sinks_of(const Weights& layer, std::int64_t first, std::int64_t heads) {
  if (!layer.block().mixer.sinks) return {};
  return layer.at("self_attn.sinks").narrow(0, first, heads).view({-1, 1, 1});
}

at::Tensor exact_attention(const Weights& layer, const Projected& qkv) {
  const MixerSpec& m = layer.block().mixer;
  const std::int64_t heads = qkv.q.size(1), group = heads / qkv.k.size(1);
  const bool plain = m.window == 0 && m.soft_cap == 0 && !m.sinks && m.head_dim == m.value_dim;
  // The CPU takes head by head, a GPU all at once: its kernel for bf16 shares keys among queries by itself.
  const std::int64_t together = qkv.q.is_cpu() ? 1 : heads;
  const bool shared = together > 1 && plain && qkv.q.scalar_type() == at::kBFloat16;
  const at::Tensor result = at::empty({qkv.q.size(0), heads, qkv.v.size(2)}, qkv.q.options());
  for (std::int64_t h = 0; h < heads; h += together) {
    const at::Tensor q = qkv.q.narrow(1, h, together).transpose(0, 1);
    const auto of_group = [&](const at::Tensor& x) {
      const at::Tensor own = x.narrow(1, h / group, std::max<std::int64_t>(1, together / group)).transpose(0, 1);
      return shared || together == 1 || group == 1 ? own : own.repeat_interleave(group, 0);
    };
    const at::Tensor k = of_group(qkv.k), v = of_group(qkv.v);
    const at::Tensor sinks = sinks_of(layer, h, together);
    result.narrow(1, h, together)
        .copy_((plain ? attend_plainly(q, k, v) : attend_by_blocks(m, q, k, v, sinks)).transpose(0, 1));
  }
  return result;
}

at::Tensor attention_output(const Weights& layer, const at::Tensor& attention, const at::Tensor& x) {
  const MixerSpec& m = layer.block().mixer;
  at::Tensor out = attention;
  if (m.kind == MixerKind::kLatentAttention) {
    const at::Tensor readers = latent_readers(layer).narrow(1, m.nope_dim, m.head_value_dim).transpose(1, 2);
    out = at::bmm(attention.transpose(0, 1), readers).transpose(0, 1);
  }
  out = out.reshape({x.size(0), -1});
  if (m.output_gate) out = out * at::sigmoid(layer.linear(layer.norm(x, layer.block().mixer_norm), "self_attn.gate"));
  return scaled_residual(layer, layer.norm(layer.linear(out, "self_attn.o_proj"), layer.block().mixer_out_norm));
}

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
