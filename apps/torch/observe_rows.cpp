// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include "observe_state.hpp"

namespace oscar::tap {
namespace {

constexpr int64_t kBlockTokens = 1024;  // bounds the memory for fp64 copies of rows

/// (tokens, heads, dim)
Tensor tokens_of(const Tensor& x) { return x.dim() == 4 ? x.flatten(0, 1) : x; }

/// bool (tokens), or nothing: all count.
std::optional<Tensor> counted(const Rows& rows, int64_t tokens) {
  if (rows.mask) return rows.mask->reshape({-1});
  if (!rows.cu_seqlens) return std::nullopt;
  const Tensor at = at::arange(tokens, rows.cu_seqlens->options().dtype(at::kLong));
  return (at >= rows.cu_seqlens->select(0, 0)).logical_and_(at < rows.cu_seqlens->select(0, -1));
}

/// sums[h] += scale * sum of x^T x over tokens and the heads of group h.
void add_grams(const Tensor& x, double scale, Tensor& sums) {
  for (int64_t begin = 0; begin < x.size(0); begin += kBlockTokens) {
    const Tensor block = x.narrow(0, begin, std::min(kBlockTokens, x.size(0) - begin)).to(at::kDouble);
    const Tensor rows = block.unflatten(1, {sums.size(0), -1}).transpose(0, 1).flatten(1, 2);
    sums.baddbmm_(rows.transpose(1, 2), rows, 1, scale);
  }
}

/// The slot of token number i of a uniform sample of n (Vitter's algorithm R, with a hash for the random number): i
/// itself while there is room, else one of i + 1 slots, of which n exist. kernels/cuda/observe_sample.cu says the same.
Tensor slots_of(const Tensor& i, int64_t seed, int64_t n) {
  constexpr int64_t k32 = 0xffffffff, kFactor = 0x45d9f3b;
  Tensor h = i.bitwise_xor(seed & k32).bitwise_and_(k32);
  for (int round = 0; round < 2; ++round) h = h.bitwise_xor(h.bitwise_right_shift(16)).mul_(kFactor).bitwise_and_(k32);
  h.bitwise_xor_(h.bitwise_right_shift(16));
  return at::where(i < n, i, h.mul_(i + 1).bitwise_right_shift_(32));
}

void add_to_sample(LayerState& layer, const Tensor& k, const Tensor& v, const std::optional<Tensor>& valid,
                   int64_t seed) {
  const int64_t n = layer.sample(), tokens = k.size(0);
  const Tensor ordinals = valid ? valid->cumsum(0) - 1 : at::arange(tokens, layer.counts.options());
  const Tensor number = ordinals + layer.counts.select(0, 0);
  const Tensor slots = slots_of(number, seed, n);
  Tensor taken = slots < n;
  if (valid) taken.logical_and_(*valid);
  // Of two tokens of one call that want a slot, the later gets it.
  layer.owners.scatter_reduce_(0, at::where(taken, slots, n), at::where(taken, number, -1), "amax");
  const Tensor wins = taken.logical_and(layer.owners.index_select(0, slots.clamp(0, n)) == number);
  const Tensor target = at::where(wins, slots, n);
  layer.k_rows.index_copy_(0, target, k);
  layer.v_rows.index_copy_(0, target, v);
}

}  // namespace

void add_rows(LayerState& layer, const Rows& rows, int64_t seed) {
  Tensor q = tokens_of(rows.q), k = tokens_of(rows.k), v = tokens_of(rows.v);
  const std::optional<Tensor> valid = counted(rows, k.size(0));
  if (valid) {
    const Tensor outside = valid->logical_not().view({-1, 1, 1});
    q = q.masked_fill(outside, 0), k = k.masked_fill(outside, 0), v = v.masked_fill(outside, 0);
  }
  add_grams(q, rows.query_scale * rows.query_scale, layer.qqt);
  add_grams(k, 1, layer.ktk);
  add_grams(v, 1, layer.vtv);
  layer.key_sums.add_(k.sum(0, false, at::kDouble));
  if (layer.sample() > 0) add_to_sample(layer, k, v, valid, seed);
  if (valid) {
    layer.counts.select(0, 0).add_(valid->sum());
  } else {
    layer.counts.select(0, 0).add_(k.size(0));
  }
  const int64_t sequences = rows.cu_seqlens ? rows.cu_seqlens->size(0) - 1 : rows.k.dim() == 4 ? rows.k.size(0) : 1;
  layer.counts.select(0, 1).add_(sequences);
}

}  // namespace oscar::tap
