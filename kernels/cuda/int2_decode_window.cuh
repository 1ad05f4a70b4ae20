// SPDX-License-Identifier: MIT
// The bfloat16 window of the INT2 decode kernel: few tokens, read straight from global memory, the same products.
#pragma once

#include "kernels/cuda/int2_decode.cuh"

namespace oscar::cuda {

/// Words of eight bfloat16 channels.
struct __align__(16) Eight {
  unsigned word[4];
};

/// The query heads of a block of one query token: rows that follow each other, each of which sees the whole window.
struct QueryHeads {
  const __nv_bfloat16* q;  // (count, head_dim)
  int count;

  /// The index of a head's row, in rows from q on.
  __device__ __forceinline__ int row(int head) const { return head; }
  /// The end of the part of the window up to `end` that the head sees.
  __device__ __forceinline__ int window_end(int, int end) const { return end; }
};

/// Tile 4 * c + w of the values has at row g (odd = 0) or g + 8 (odd = 1) the channel 64 * c + 8 * g + 2 * w + odd; the
/// steps of K Q^T take the channels of 16-byte pieces as they come. A lane so reads 16 bytes at a time.
/// Params: DecodeParams, or others that name the window alike. Heads: QueryHeads, or others that have the same members.
template <class S, class Params>
class WindowWarp {
 public:
  __device__ WindowWarp(const Params& p, int sequence, int kv_head)
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
  template <class Heads>
  __device__ void run(int first, int end, int warp, const Heads& heads, WarpState<S>& state) const {
    const int t = lane_ % 4, g = lane_ / 4;
    for (int begin = first + 16 * warp; begin < end; begin += 16 * p_.rule.warps) {
      float products[S::kValueTiles][4] = {};
      const Eight* const top = row(p_.k_window, begin + token_of_row(g), end);
      const Eight* const bottom = row(p_.k_window, begin + token_of_row(g + 8), end);
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
        rows[i] = of.row(of.p_.v_window, begin + token_of_row(tokens[i]), end) + of.lane_ / 4;
#pragma unroll
        for (int c = 0; kEarly && c < kPieces; ++c) pieces[i][c] = rows[i][8 * c];
      }
    }
    __device__ __forceinline__ Eight of(int i, int c) const {
      if constexpr (kEarly) return pieces[i][c];
      return rows[i][8 * c];
    }
  };

  template <class Heads>
  __device__ __forceinline__ void finish(const float (&products)[S::kValueTiles][4], const Values& values, int begin,
                                         int end, const Heads& heads, WarpState<S>& state) const {
    const int t = lane_ % 4, g = lane_ / 4;
    float scores[S::kKeyTiles][2], tops[S::kKeyTiles];
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      const int end_of_head = heads.window_end(4 * i + t, end);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool counts = begin + token_of_row(g + 8 * r) < end_of_head;
        scores[i][r] = counts ? products[i / 2][2 * r + i % 2] * p_.score_scale : -INFINITY;
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

  const Params& p_;
  const std::int32_t* pages_;
  int kv_head_, lane_;
};

}  // namespace oscar::cuda
