// SPDX-License-Identifier: MIT
// The bfloat16 window of the coded decode kernel: few tokens, read straight from global memory, 16 at a time.
#pragma once

#include "kernels/cuda/coded_attention_scores.cuh"
#include "kernels/cuda/split_merge.cuh"

namespace oscar::cuda {

/// Head at column g of a value tile.
__device__ __forceinline__ int head_of_column(int value_tile, int g) { return 8 * value_tile + 4 * (g & 1) + (g >> 1); }

/// What a warp has computed.
template <class S>
struct WindowState {
  float out[S::kValueTiles][S::kDim / 16][4];
  float sum[S::kKeyTiles];      // of weights, of this lane's tokens
  float highest[S::kKeyTiles];  // weights are 2^(score - highest), the same in all lanes of a head

  __device__ WindowState() {
    for (auto& tiles : out) {
      for (auto& tile : tiles) tile[0] = tile[1] = tile[2] = tile[3] = 0;
    }
    for (int i = 0; i < S::kKeyTiles; ++i) sum[i] = 0, highest[i] = -INFINITY;
  }

  /// Makes room for `tops`, the largest scores of this lane's tokens per head: afterwards none is more than kHeadroom
  /// above `highest`. Most calls change nothing.
  __device__ __forceinline__ void raise(const float (&tops)[S::kKeyTiles]) {
    constexpr float kHeadroom = 8;  // bfloat16 holds 2^8 as well as 1
    bool high = false;
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) high |= tops[i] > highest[i] + kHeadroom;
    if (!__any_sync(kAllLanes, high)) return;
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      float reached = fmaxf(tops[i], highest[i]);
      for (int step = 4; step < kWarp; step *= 2) {
        reached = fmaxf(reached, __shfl_xor_sync(kAllLanes, reached, step));
      }
      const float factor = reached == -INFINITY ? 1.0F : fast_exp2(highest[i] - reached);
      highest[i] = reached;
      sum[i] *= factor;
#pragma unroll
      for (auto& tile : out[i / 2]) {
        tile[i % 2] *= factor, tile[i % 2 + 2] *= factor;
      }
    }
  }
};

/// Words of eight bfloat16 channels.
struct __align__(16) Eight {
  unsigned word[4];
};

/// Tile 4 * c + w of the values has at row g (odd = 0) or g + 8 (odd = 1) the channel 64 * c + 8 * g + 2 * w + odd; the
/// steps of K Q^T take the channels of 16-byte pieces as they come. A lane so reads 16 bytes at a time.
template <class S>
class WindowWarp {
 public:
  __device__ WindowWarp(const CodedParams& p, int sequence, int kv_head)
      : p_(p),
        pages_(p.args.window.pages + static_cast<std::int64_t>(sequence) * p.args.window.pages_per_sequence),
        kv_head_(kv_head),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  /// Has the block's tokens [first, end) brought to the second cache, all at once: run() waits for few at a time.
  __device__ __forceinline__ void fetch(int first, int end) const {
    constexpr int kLine = 64;  // channels
    for (int token = first + static_cast<int>(threadIdx.x); token < end; token += static_cast<int>(blockDim.x)) {
      for (const PagedRows* rows : {&p_.k_window, &p_.v_window}) {
        const auto* const from = reinterpret_cast<const __nv_bfloat16*>(row(*rows, token, end));
#pragma unroll
        for (int line = 0; line < S::kDim; line += kLine) asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from + line));
      }
    }
  }

  /// Tokens [first, end), of which this warp has every `warps`-th 16 from its own on.
  __device__ void run(int first, int end, int warp, const CodedHeads& heads, WindowState<S>& state) const {
    const int t = lane_ % 4, g = lane_ / 4;
    for (int begin = first + 16 * warp; begin < end; begin += 16 * p_.rule.warps) {
      float products[S::kValueTiles][4] = {};
      const Eight* const top = row(p_.k_window, begin + g, end);
      const Eight* const bottom = row(p_.k_window, begin + g + 8, end);
      const Values values(*this, begin, end);
#pragma unroll
      for (int k = t; k < S::kDim / 8; k += 4) {
        const Eight a = top[k], b = bottom[k];
#pragma unroll
        for (int n = 0; n < S::kValueTiles; ++n) {
          const int head = head_of_column(n, g);
          Eight query{};
          if (head < heads.count) query = reinterpret_cast<const Eight*>(heads.q + heads.row(head) * S::kDim)[k];
#pragma unroll
          for (int w = 0; w < 4; w += 2) {
            mma<Half::kBfloat16>(products[n], a.word[w], b.word[w], a.word[w + 1], b.word[w + 1], query.word[w],
                                 query.word[w + 1]);
          }
        }
      }
      finish(products, values, begin, end, heads, state);
    }
  }

 private:
  __device__ const Eight* row(const PagedRows& rows, int token, int end) const {
    token = min(token, end - 1);
    const int page = pages_[token >> p_.window_shift], slot = token & ((1 << p_.window_shift) - 1);
    return reinterpret_cast<const Eight*>(rows.at(rows.head(kv_head_), page, slot));
  }

  /// The lane's pieces of the values of 16 tokens. Where there are registers for them they are read with the keys.
  struct Values {
    static constexpr bool kEarly = S::kDim <= 128 && S::kValueTiles == 1;
    static constexpr int kPieces = S::kDim / 64;
    const Eight* rows[4];
    Eight pieces[4][kEarly ? kPieces : 1];

    __device__ __forceinline__ Values(const WindowWarp& of, int begin, int end) {
      const int t = of.lane_ % 4, tokens[4] = {2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rows[i] = of.row(of.p_.v_window, begin + tokens[i], end) + of.lane_ / 4;
#pragma unroll
        for (int c = 0; kEarly && c < kPieces; ++c) pieces[i][c] = rows[i][8 * c];
      }
    }
    __device__ __forceinline__ Eight of(int i, int c) const {
      if constexpr (kEarly) return pieces[i][c];
      return rows[i][8 * c];
    }
  };

  __device__ __forceinline__ void finish(const float (&products)[S::kValueTiles][4], const Values& values, int begin,
                                         int end, const CodedHeads& heads, WindowState<S>& state) const {
    const int t = lane_ % 4, g = lane_ / 4;
    float scores[S::kKeyTiles][2], tops[S::kKeyTiles];
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      const int end_of_head = heads.window_end(4 * i + t, end);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool counts = begin + g + 8 * r < end_of_head;
        float score = products[i / 2][2 * r + i % 2] * p_.score_scale;
        if (p_.soft_cap > 0) score = soft_capped(score, p_.soft_cap);
        scores[i][r] = counts ? score : -INFINITY;
      }
      tops[i] = fmaxf(scores[i][0], scores[i][1]);
    }
    state.raise(tops);
    // As the sum of two bfloat16 numbers: the values are bfloat16, and eight bits of a weight are too few.
    unsigned weights[S::kValueTiles][2], rest[S::kValueTiles][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float weight[2 * S::kValueTiles] = {};
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        // A head that has seen nothing yet may see nothing here, too.
        weight[i] = scores[i][r] == -INFINITY ? 0.0F : fast_exp2(scores[i][r] - state.highest[i]);
        state.sum[i] += weight[i];
      }
#pragma unroll
      for (int n = 0; n < S::kValueTiles; ++n) {
        const unsigned pair = pack_bf16(weight[2 * n], weight[2 * n + 1]);
        weights[n][r] = transpose8(pair);
        rest[n][r] = transpose8(pack_bf16(weight[2 * n] - low_bf16(pair), weight[2 * n + 1] - high_bf16(pair)));
      }
    }
#pragma unroll
    for (int c = 0; c < S::kDim / 64; ++c) {
      const Eight e0 = values.of(0, c), e1 = values.of(1, c), e2 = values.of(2, c), e3 = values.of(3, c);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const unsigned a0 = __byte_perm(e0.word[w], e1.word[w], 0x5410),
                       a1 = __byte_perm(e0.word[w], e1.word[w], 0x7632);
        const unsigned a2 = __byte_perm(e2.word[w], e3.word[w], 0x5410),
                       a3 = __byte_perm(e2.word[w], e3.word[w], 0x7632);
#pragma unroll
        for (int n = 0; n < S::kValueTiles; ++n) {
          mma<Half::kBfloat16>(state.out[n][4 * c + w], a0, a1, a2, a3, weights[n][0], weights[n][1]);
          mma<Half::kBfloat16>(state.out[n][4 * c + w], a0, a1, a2, a3, rest[n][0], rest[n][1]);
        }
      }
    }
  }

  const CodedParams& p_;
  const std::int32_t* pages_;
  int kv_head_, lane_;
};

// How a block adds up its warps.

/// Floats of a head in what a warp hands to merge_window(); + 8 against bank conflicts.
template <class S>
inline constexpr int kWindowStride = S::kDim + 8;
/// Bytes of a warp's copies that merge_window() needs.
template <class S>
inline constexpr int kWindowMergeBytes = 4 * kWindowStride<S> * 4;

/// The channels of a lane's head of one warp, to rows[head][channel].
template <class S>
__device__ __forceinline__ void write_window(const WindowState<S>& state, int tile_of_heads, float* rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4;
  float* const row = rows + lane % 4 * kWindowStride<S>;
  const auto& out = state.out[tile_of_heads / 2];
  const int j = tile_of_heads % 2;
#pragma unroll
  for (int tile = 0; tile < S::kDim / 16; ++tile) {
    const int channel = 64 * (tile / 4) + 8 * g + 2 * (tile % 4);
    *reinterpret_cast<float2*>(row + channel) = {out[tile][j], out[tile][j + 2]};
  }
}

/// Adds up the block's warps: `state` of each, at last in split `split` of `to`. shared: `warp_bytes`
/// for each warp, at least kWindowMergeBytes.
template <class S>
__device__ __forceinline__ void merge_window(const WindowState<S>& state, unsigned char* shared, int warp_bytes,
                                             int warps, const PartialView<S>& to, int split) {
  constexpr int kStride = kWindowStride<S>;
  const auto result = [&](int of_warp) { return reinterpret_cast<float*>(shared + of_warp * warp_bytes); };
  __shared__ float highest[S::kHeads][kMostDecodeWarps], sums[S::kHeads][kMostDecodeWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int tile = 0; tile < S::kKeyTiles; ++tile) {
    if (tile > 0) __syncthreads();
    __syncwarp();
    write_window(state, tile, result(warp));
    const float own_sum = sum_over_tokens(state.sum[tile]);
    if (lane < 4) highest[4 * tile + lane][warp] = state.highest[tile], sums[4 * tile + lane][warp] = own_sum;
    __syncthreads();
    const int items = min(4, to.heads - 4 * tile) * S::kDim / 2;
    for (int i = static_cast<int>(threadIdx.x); i < items; i += static_cast<int>(blockDim.x)) {
      const int head = 4 * tile + i / (S::kDim / 2), channel = i % (S::kDim / 2) * 2;
      float top = highest[head][0], sum = 0;
#pragma unroll
      for (int w = 1; w < kMostDecodeWarps; ++w) top = w < warps ? fmaxf(top, highest[head][w]) : top;
      float2 total{0, 0};
#pragma unroll
      for (int w = 0; w < kMostDecodeWarps; ++w) {
        if (w >= warps) break;
        const float factor = rescaling(highest[head][w], top);
        const float2 part = *reinterpret_cast<const float2*>(result(w) + head % 4 * kStride + channel);
        total.x += factor * part.x, total.y += factor * part.y;
        sum += factor * sums[head][w];
      }
      *reinterpret_cast<float2*>(to.out(split, tile) + head % 4 * S::kDim + channel) = total;
      if (channel == 0) to.sum(split, head) = sum, to.highest(split, head) = top;
    }
  }
}

}  // namespace oscar::cuda
