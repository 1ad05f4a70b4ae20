// SPDX-License-Identifier: MIT
// A block of the INT2 decode kernel: its warps' pieces of the history, and of the window, added up.
#pragma once

#include "kernels/cuda/int2_decode_warp.cuh"

namespace oscar::cuda {

// Decode attention in one launch. A block is one part (at most 16 query heads of one KV head) of one split of one
// sequence; its warps take 32 tokens at a time, each with copies of its own in flight; the block adds up its warps, and
// the last block of a sequence's part adds up the splits, in order, so that every run gives the same bits. The first
// splits are the bfloat16 window, the others are pieces of the history whose size depends on the sequence's own length.

template <class S>
struct DecodeStages {
  static constexpr int kCodeBytes = kStepTokens * S::kRowBytes;
  static constexpr int kParamBytes = kStepTokens * S::kParamBytes;
  static constexpr int kBytes = 2 * (kCodeBytes + kParamBytes);  // keys and values of one step
  static constexpr int kCount = kBytes <= 3328 ? 4 : kBytes <= 6656 ? 3 : 2;
  static constexpr int kWarpBytes = kCount * kBytes;
};

/// One warp's way through its steps of the history.
template <class S>
class HistoryWarp {
 public:
  using Stages = DecodeStages<S>;

  __device__ HistoryWarp(const DecodeParams& p, int sequence, int kv_head, unsigned char* shared)
      : p_(p),
        shared_(shared),
        target_(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
        pages_(p.args.history.pages + static_cast<std::int64_t>(sequence) * p.args.history.pages_per_sequence),
        shift_(p.history_shift),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        bfloat_params_(p.args.param_dtype == OSCAR_BFLOAT16) {
    const auto code_piece = [&](const PagedRows& rows) {
      return kept(rows.at(rows.head(kv_head), 0, lane_ / kPerRow) + lane_ % kPerRow * 16);
    };
    const auto param_row = [&](const PagedRows& rows) { return kept(rows.at(rows.head(kv_head), 0, lane_)); };
    codes_[0] = code_piece(p.k_codes), codes_[1] = code_piece(p.v_codes);
    params_[0] = param_row(p.k_params), params_[1] = param_row(p.v_params);
  }

  /// Takes tokens [first, end), of which this warp has every rule.warps-th step from step `warp` on, and begins to
  /// load which pages hold the first of them.
  __device__ __forceinline__ void look_up(int first, int end, int warp) {
    first_ = first + warp * kStepTokens, end_ = end;
    const int steps = (end - first + kStepTokens - 1) / kStepTokens;
    count_ = steps > warp ? (steps - warp + p_.rule.warps - 1) / p_.rule.warps : 0;
#pragma unroll
    for (int i = 0; i < Stages::kCount; ++i) pages_ahead_[i] = i < count_ ? page_of(i) : 0;
  }
  /// True if it has these tokens.
  __device__ bool has(int first, int end, int warp) const {
    return first_ == first + warp * kStepTokens && end_ == end;
  }

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < Stages::kCount - 1; ++i) {
      if (i < count_) copy(i, pages_ahead_[i], i);
      commit_copies();
    }
  }

  __device__ __forceinline__ void run(const PackedQueries<S>& queries, WarpState<S>& state) {
    int stage = 0, free_stage = Stages::kCount - 1, next_page = pages_ahead_[free_stage];
    for (int i = 0; i < count_; ++i) {
      wait_for_copies<Stages::kCount - 2>();
      __syncwarp();  // every lane's copies are there, and nobody reads the stage that the next copies go to
      const int ahead = i + Stages::kCount - 1;
      if (ahead < count_) copy(free_stage, next_page, ahead);
      commit_copies();
      if (ahead + 1 < count_) next_page = page_of(ahead + 1);
      step(shared_ + stage * Stages::kBytes, end_ - begin_of(i), queries, state);
      free_stage = stage;
      stage = stage + 1 == Stages::kCount ? 0 : stage + 1;
    }
  }

 private:
  static constexpr int kPerRow = S::kRowBytes / 16;  // pieces that a lane copies

  __device__ int begin_of(int i) const { return first_ + i * p_.rule.warps * kStepTokens; }
  /// Token of this lane in the warp's i-th step; after the end, the last one again (its weight will be 0).
  __device__ int token_of(int i) const { return min(begin_of(i) + lane_, end_ - 1); }
  __device__ int page_of(int i) const { return pages_[token_of(i) >> shift_]; }

  /// Copies this lane's pieces of the i-th step's 32 rows; `page`: of this lane's token.
  __device__ __forceinline__ void copy(int stage, int page, int i) const {
    const unsigned target = target_ + static_cast<unsigned>(stage * Stages::kBytes);
    const int mask = (1 << shift_) - 1;
    if (shift_ >= 5 && begin_of(i) + kStepTokens <= end_) {  // the rows follow each other in one page
      const int slot = begin_of(i) & mask;
      copy_all(target, [=](const PagedRows& rows, const unsigned char* from, int row, int) {
        return rows.at(from, page, slot) + std::int64_t{rows.token_stride} * row;
      });
    } else {
      const int slot = token_of(i) & mask;
      copy_all(target, [=](const PagedRows& rows, const unsigned char* from, int row, int own) {
        return rows.at(from, __shfl_sync(kAllLanes, page, own + row), __shfl_sync(kAllLanes, slot, own + row) - own);
      });
    }
  }

  /// at(rows, from, n, own): what lies in row own + n of the step as `from` does in row `own` of page 0.
  template <class At>
  __device__ __forceinline__ void copy_all(unsigned target, const At& at) const {
    constexpr int kRows = kWarp / kPerRow;  // of codes at a time
    constexpr int kPiece = S::kParamBytes < 16 ? S::kParamBytes : 16;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const PagedRows& rows = side == 0 ? p_.k_codes : p_.v_codes;
#pragma unroll
      for (int i = 0; i < kPerRow; ++i) {
        copy_async<16>(target + side * Stages::kCodeBytes + (lane_ + i * kWarp) * 16,
                       at(rows, codes_[side], i * kRows, lane_ / kPerRow));
      }
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const unsigned to = target + 2 * Stages::kCodeBytes + side * Stages::kParamBytes + lane_ * S::kParamBytes;
      const unsigned char* const from = at(side == 0 ? p_.k_params : p_.v_params, params_[side], 0, lane_);
#pragma unroll
      for (int i = 0; i < S::kParamBytes; i += kPiece) copy_async<kPiece>(to + i, from + i);
    }
  }

  /// A (scale, zero) pair of a row's group.
  __device__ __forceinline__ float2 param(const unsigned char* rows, int token, int group) const {
    const unsigned char* row = rows + token * S::kParamBytes;
    if constexpr (!S::kHalf) {
      return reinterpret_cast<const float2*>(row)[group];
    } else {
      const unsigned pair = reinterpret_cast<const unsigned*>(row)[group];
      if (bfloat_params_) return {low_bf16(pair), high_bf16(pair)};
      return __half22float2(*reinterpret_cast<const __half2*>(&pair));
    }
  }

  /// 32 tokens, of which the first `valid` count.
  __device__ __forceinline__ void step(const unsigned char* stage, int valid, const PackedQueries<S>& queries,
                                       WarpState<S>& state) const {
    const unsigned char* const values = stage + Stages::kCodeBytes;
    const unsigned char* const key_params = values + Stages::kCodeBytes;
    const unsigned char* const value_params = key_params + Stages::kParamBytes;
    float scores[2][S::kKeyTiles][2], tops[S::kKeyTiles];
    float2 value_param[2][2][S::kGroups];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float products[S::kKeyTiles][S::kGroups][2];
      queries.multiply(stage + half * 16 * S::kRowBytes, lane_, products);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int token = half * 16 + token_of_row(lane_ / 4 + 8 * row);
        score(key_params, token, row, products, queries, scores[half]);
#pragma unroll
        for (int group = 0; group < S::kGroups; ++group) {
          value_param[half][row][group] = param(value_params, token, group);
        }
      }
    }
    if (valid < kStepTokens) drop_from(valid, scores);
    find_tops(scores, value_param, queries, tops);
    state.raise(tops);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned weights[S::kValueTiles][S::kGroups][2];
      weigh(scores[half], value_param[half], queries, state, weights);
      add_packed_values<S>(values + half * 16 * S::kRowBytes, lane_, weights, state);
    }
  }

  /// Scores of row `row` of the lane's two, in units of the queries.
  __device__ __forceinline__ void score(const unsigned char* params, int token, int row,
                                        const float (&products)[S::kKeyTiles][S::kGroups][2],
                                        const PackedQueries<S>& queries, float (&scores)[S::kKeyTiles][2]) const {
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) scores[i][row] = 0;
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group) {
      const float2 key = param(params, token, group);
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        scores[i][row] += key.x * (products[i][group][row] - key.y * queries.sum[i][group]);
      }
    }
  }

  /// Tokens from `valid` on are none.
  __device__ __forceinline__ void drop_from(int valid, float (&scores)[2][S::kKeyTiles][2]) const {
#pragma unroll
    for (int i = 0; i < 4 * S::kKeyTiles; ++i) {
      const int half = i & 1, row = i >> 1 & 1;
      if (16 * half + token_of_row(lane_ / 4 + 8 * row) >= valid) scores[half][i / 4][row] = -INFINITY;
    }
  }

  /// Largest scores, with the logarithms of the values' scales: weight * scale must not exceed what float16 holds.
  __device__ __forceinline__ void find_tops(const float (&scores)[2][S::kKeyTiles][2],
                                            const float2 (&params)[2][2][S::kGroups], const PackedQueries<S>& queries,
                                            float (&tops)[S::kKeyTiles]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float largest = params[half][row][0].x;
#pragma unroll
        for (int group = 1; group < S::kGroups; ++group) largest = fmaxf(largest, params[half][row][group].x);
        const float log_scale = fast_log2(largest);
#pragma unroll
        for (int i = 0; i < S::kKeyTiles; ++i) {
          const float top = scores[half][i][row] * queries.unit[i] + log_scale;
          tops[i] = half + row == 0 ? top : fmaxf(tops[i], top);
        }
      }
    }
  }

  /// Scores of 16 tokens to weights times the values' scales, ready to be multiplied.
  __device__ __forceinline__ void weigh(const float (&scores)[S::kKeyTiles][2], const float2 (&params)[2][S::kGroups],
                                        const PackedQueries<S>& queries, WarpState<S>& state,
                                        unsigned (&weights)[S::kValueTiles][S::kGroups][2]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float weight[S::kKeyTiles];
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        weight[i] = fast_exp2(scores[i][row] * queries.unit[i] - state.highest[i]);
        state.sum[i] += weight[i];
      }
#pragma unroll
      for (int group = 0; group < S::kGroups; ++group) {
        const float2 value = params[row][group];
        float scaled[2 * S::kValueTiles] = {};  // of an odd tile: 0
#pragma unroll
        for (int i = 0; i < S::kKeyTiles; ++i) {
          scaled[i] = weight[i] * value.x;
          state.zero[i][group] += scaled[i] * value.y;
        }
#pragma unroll
        for (int n = 0; n < S::kValueTiles; ++n) {
          weights[n][group][row] = transpose8(pack_f16(scaled[2 * n], scaled[2 * n + 1]));
        }
      }
    }
  }

  const DecodeParams& p_;
  const unsigned char* shared_;
  unsigned target_;  // the same as an address in shared memory
  const std::int32_t* pages_;
  int shift_, lane_;
  const unsigned char *codes_[2], *params_[2];  // keys and values: where this lane's first piece of a page 0 lies
  int first_ = 0, end_ = 0, count_ = 0;         // token of the first step, end of the split, steps
  int pages_ahead_[Stages::kCount];             // of the first steps
  bool bfloat_params_;
};

// The bfloat16 window of the INT2 decode kernel: few tokens, read straight from global memory, the same products.

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
