// SPDX-License-Identifier: MIT
// What the INT2 decode kernel is given, and what its warps do: queries as operands of integer products, and a warp on
// its way through packed rows.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/cuda/decode_plan.hpp"
#include "kernels/cuda/int2_arguments.hpp"
#include "kernels/cuda/int2_mma.cuh"
#include "kernels/cuda/warp.cuh"
#include "oscar/int2_attention.h"

namespace oscar::cuda {

// What the INT2 decode kernel is given.

/// Bytes of a workspace that counters of finished splits take: the same for all calls of up to 16384 counters, so that
/// calls of different shapes can share a workspace, which expect zeros there.
constexpr std::size_t counter_bytes(std::size_t counters) {
  constexpr std::size_t kLeast = 64 * 1024;
  const std::size_t bytes = (4 * counters + 255) / 256 * 256;
  return bytes < kLeast ? kLeast : bytes;
}

/// Floats that a split's result takes: see PartialView.
constexpr int partial_floats(int heads, int head_dim) { return (heads + 3) / 4 * 4 * (head_dim + 2); }

/// Splits whose results are read at once when they are added up: the 33 that a single sequence of 8 KV heads has, in
/// whole 16 bytes of factors.
inline constexpr int kSplitsAtOnce = 36;
static_assert(kSplitsAtOnce % 4 == 0);
OSCAR_HOST_DEVICE constexpr int padded_splits(int splits) {
  return (splits + kSplitsAtOnce - 1) / kSplitsAtOnce * kSplitsAtOnce;
}
/// Bytes of shared memory that adding up takes.
constexpr int split_merge_bytes(int heads, int splits) { return 4 * heads * padded_splits(splits); }

inline constexpr int kMostDecodeWarps = 8;  // of a block

/// oscar_paged_rows with strides that one multiplication takes.
struct PagedRows {
  const unsigned char* data;
  int page_stride, token_stride, head_stride;

  __device__ const unsigned char* head(int kv_head) const { return data + std::int64_t{head_stride} * kv_head; }
  __device__ const unsigned char* at(const unsigned char* from, int page, int slot) const {
    return from + std::int64_t{page_stride} * page + std::int64_t{token_stride} * slot;
  }
};

/// The arguments as the kernel takes them.
struct DecodeParams {
  oscar_int2_decode_args args;
  PagedRows k_codes, v_codes, k_params, v_params, k_window, v_window;
  SplitRule rule;
  int parts, part_heads;  // of a KV head
  int max_splits;
  SplitPlan longest;                // of a sequence of max_length
  int history_shift, window_shift;  // log2 of the page sizes
  float score_scale;                // softmax scale * log2(e)
  float* partials;                  // (batch, num_kv_heads * parts): see PartialView
  std::int64_t unit_floats;         // of a (sequence, part)
  int* tickets;                     // (batch, num_kv_heads * parts)
};

inline PagedRows narrow(const oscar_paged_rows& rows) {
  return {static_cast<const unsigned char*>(rows.data), static_cast<int>(rows.page_stride),
          static_cast<int>(rows.token_stride), static_cast<int>(rows.head_stride)};
}

/// What the parameters of both decode kernels take from arguments, once the rule and the heads of a part are known.
template <class Args, class Params>
void fill_common(const Args& a, int head_dim, Params& p) {
  p.args = a;
  p.k_window = narrow(a.k_window), p.v_window = narrow(a.v_window);
  p.longest = SplitPlan(a.history.max_length, a.window.max_length, p.rule);
  p.max_splits = SplitPlan::most(a.history.max_length, a.window.max_length, p.rule);
  p.unit_floats = std::int64_t{p.max_splits} * partial_floats(p.part_heads, head_dim);
  p.history_shift = std::countr_zero(static_cast<unsigned>(a.history.page_size));
  p.window_shift = std::countr_zero(static_cast<unsigned>(a.window.page_size));
  p.score_scale = a.softmax_scale * 1.4426950408889634F;
}

/// Says where in the workspace, which must have `needed` bytes, tickets and then partials lie. Returns what refuse()
/// does if it cannot be, or outputs cannot; else 0.
template <class Args, class Params>
int place_results(const Args& a, std::size_t needed, std::size_t ticket_bytes, Params& p) {
  if (a.out == nullptr || reinterpret_cast<std::uintptr_t>(a.out) % 8 != 0) {
    return refuse("out must not be null, and 8-byte aligned");
  }
  if (a.workspace == nullptr || a.workspace_bytes < needed) {
    return refuse("the workspace must have " + std::to_string(needed) + " bytes");
  }
  p.tickets = static_cast<int*>(a.workspace);
  p.partials = reinterpret_cast<float*>(static_cast<char*>(a.workspace) + ticket_bytes);
  return 0;
}

// The queries of a block of the INT2 decode kernel, as its integer products take them. S: a DecodeShape.

/// Queries of a block as integers of two signed bytes, 4 * unit * (256 * high + low), in shared memory. The error is
/// less than 2^-15 of a head's largest |q|, where bfloat16 has errors of 2^-9 of each.
template <class S>
struct BlockQueries {
  static constexpr int kStride = S::kDim / 4 + 8;  // of a head's high or low words; + 8 against bank conflicts
  static constexpr int kLeastWarps = 4, kMostHeads = (S::kHeads + kLeastWarps - 1) / kLeastWarps;  // of a warp
  static constexpr int kFours = (S::kDim / 4 + kWarp - 1) / kWarp;
  unsigned words[2 * S::kHeads][kStride];  // of 4 channels: of head h, high at 2h and low at 2h + 1
  float unit[S::kHeads];                   // times score_scale; positive, or not finite if a query is not

  /// A warp's share of the queries on their way: heads warp, warp + warps, ... of a block of at least kLeastWarps.
  struct Fetched {
    uint2 fours[kMostHeads][kFours];
  };
  /// q: (num_heads, kDim) of this KV head, 8-byte aligned; heads beyond are zeros.
  __device__ __forceinline__ static Fetched fetch(const __nv_bfloat16* q, int num_heads, int warp, int warps) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Fetched fetched;
#pragma unroll
    for (int n = 0; n < kMostHeads; ++n) {
      const int head = warp + n * warps;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const int channel = 4 * (lane + i * kWarp);
        const bool there = head < num_heads && channel < S::kDim;
        fetched.fours[n][i] = there ? *reinterpret_cast<const uint2*>(q + head * S::kDim + channel) : uint2{0, 0};
      }
    }
    return fetched;
  }

  __device__ __forceinline__ void store(const Fetched& fetched, int warp, int warps, float score_scale) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < kMostHeads; ++n) {
      const int head = warp + n * warps;
      if (head >= S::kHeads) return;
      unsigned largest = 0;  // magnitudes are ordered as their bits are, with what is not finite on top
#pragma unroll
      for (const uint2 four : fetched.fours[n]) {
        for (const unsigned pair : {four.x, four.y}) {
          largest = max(largest, max(pair << 16 & 0x7fff0000U, pair & 0x7fff0000U));
        }
      }
      largest = __reduce_max_sync(kAllLanes, largest);
      const float top = __uint_as_float(largest), per_unit = largest == 0 ? 0.0F : kLargest / top;
      if (lane == 0) unit[head] = largest == 0 ? 1.0F : top / (4 * kLargest) * score_scale;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const int word = lane + i * kWarp;
        if (4 * word < S::kDim) split(fetched.fours[n][i], per_unit, head, word);
      }
    }
  }

 private:
  static constexpr float kLargest = 127 * 256;

  __device__ void split(uint2 four, float per_unit, int head, int word) {
    int x[4] = {__float2int_rn(low_bf16(four.x) * per_unit), __float2int_rn(high_bf16(four.x) * per_unit),
                __float2int_rn(low_bf16(four.y) * per_unit), __float2int_rn(high_bf16(four.y) * per_unit)};
    const auto bytes = [&] {
      return __byte_perm(__byte_perm(x[0], x[1], 0x0040), __byte_perm(x[2], x[3], 0x0040), 0x5410);
    };
    words[2 * head + 1][word] = bytes();
    for (int& value : x) value = (value + 128) >> 8;
    words[2 * head][word] = bytes();
  }
};

// What one warp of the INT2 decode kernel computes: attention of up to 16 query heads over 16 tokens at a time, as
// matrix products with tokens as rows. A warp's state is a running softmax per query head.
//   scores (16 tokens, heads) = K Q^T,   out (channels, heads) = V^T P^T
// Lane l stands for g = l / 4 and t = l % 4, as in int2_mma.cuh. A key tile is four heads: lane (g, t) has the scores
// of tokens g and g + 8 with head t of each tile. A value tile is two key tiles, interleaved: column 2t is head t of
// the first, column 2t + 1 of the second.

/// head_dim, (scale, zero) pairs per row, key tiles, and whether pairs are 4 bytes (else 8).
template <int kHeadDim, int kNumGroups, int kNumKeyTiles, bool kHalfParams>
struct DecodeShape {
  static constexpr int kDim = kHeadDim, kGroups = kNumGroups, kKeyTiles = kNumKeyTiles;
  static constexpr int kValueTiles = (kKeyTiles + 1) / 2;
  static constexpr int kRowBytes = kDim / 4;
  static constexpr int kParamBytes = kGroups * (kHalfParams ? 4 : 8);
  static constexpr bool kHalf = kHalfParams;
  static constexpr int kTiles = kDim / 16, kOutTiles = kTiles;                           // of 16 channels
  static constexpr int kKeyWords = kDim / 64;                                            // per lane and token
  static constexpr int kPieces = kDim == 256 ? 2 : 1;                                    // of 32 bytes of a row
  static constexpr int kHeads = 4 * kKeyTiles;                                           // query heads at most
  static constexpr int kBlocks = kDim <= 128 && kGroups <= 2 && kKeyTiles <= 2 ? 2 : 1;  // at once, for the registers

  /// Group of the channels whose codes lie at bit 2 * quarter of the bytes of a piece.
  __device__ static constexpr int group(int quarter, int piece) {
    return kGroups <= 4 ? quarter * kGroups / 4 : 2 * quarter + piece;
  }
};

/// Token of a 16-token tile that stands at row j of the products. Of rows 0 to 3, of rows 4 to 7, of the even and of
/// the odd rows no two are a multiple of 4 apart: neither keys nor values are read with bank conflicts.
__device__ __forceinline__ int token_of_row(int j) { return j ^ (j >> 2 & 1); }

/// Head at column g of a value tile.
__device__ __forceinline__ int head_of_column(int value_tile, int g) { return 8 * value_tile + 4 * (g & 1) + (g >> 1); }

template <class S>
struct WarpState {
  float out[S::kValueTiles][S::kOutTiles][4];  // of packed values: times code_factor * 2^-24, zeros not yet taken off
  float zero[S::kKeyTiles][S::kGroups];        // sum of weight * scale * zero, of this lane's tokens
  float sum[S::kKeyTiles];                     // of weights, of this lane's tokens
  float highest[S::kKeyTiles];                 // weights are 2^(score - highest), the same in all lanes of a head

  __device__ WarpState() {
    for (auto& tiles : out) {
      for (auto& tile : tiles) tile[0] = tile[1] = tile[2] = tile[3] = 0;
    }
    for (int i = 0; i < S::kKeyTiles; ++i) {
      for (float& group : zero[i]) group = 0;
      sum[i] = 0;
      highest[i] = -INFINITY;
    }
  }

  /// Makes room for `tops`, the largest scores of this lane's tokens per head: afterwards none is more than kHeadroom
  /// above `highest`. Most calls change nothing.
  __device__ __forceinline__ void raise(const float (&tops)[S::kKeyTiles]) {
    constexpr float kHeadroom = 8;  // float16 holds 2^8 as well as 1
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
#pragma unroll
      for (float& group : zero[i]) group *= factor;
    }
  }
};

/// Queries as the right operand of K Q^T for packed keys, in a warp's registers. Columns 2t and 2t + 1 of a key tile
/// are the high and the low bytes of its head t.
template <class S>
struct PackedQueries {
  unsigned pairs[S::kKeyTiles][S::kDim / 32][2];
  float sum[S::kKeyTiles][S::kGroups];  // of q / unit
  float unit[S::kKeyTiles];             // times score_scale

  __device__ __forceinline__ PackedQueries(const BlockQueries<S>& block, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
      unit[i] = block.unit[4 * i + t];
      const unsigned* const words = block.words[8 * i + g];
#pragma unroll
      for (int k = 0; k < S::kDim / 32; ++k) {
        const int first = word_of(k, 0, t), second = word_of(k, 1, t);
        pairs[i][k][0] = words[first];
        pairs[i][k][1] = words[second];
      }
    }
    add_up();
  }

  /// products[i][group][row] = the sum of q / unit * code over the group's channels, for 16 packed rows at `codes`: of
  /// tokens g and g + 8 with the lane's head of key tile i.
  __device__ __forceinline__ void multiply(const unsigned char* codes, int lane,
                                           float (&products)[S::kKeyTiles][S::kGroups][2]) const {
    const int g = lane / 4, t = lane % 4;
    unsigned top[S::kKeyWords], bottom[S::kKeyWords];
    load(codes + token_of_row(g) * S::kRowBytes, t, top);
    load(codes + token_of_row(g + 8) * S::kRowBytes, t, bottom);
    multiply(top, bottom, products);
  }

 private:
  /// Returns which of a head's words of 4 channels lane t has in half `half` of product k: see multiply().
  __device__ static constexpr int word_of(int k, int half, int t) {
    if (S::kDim == 64) return S::kRowBytes / 4 * (S::kGroups == 1 ? k + 2 * half : 2 * k + half) + t;
    return S::kRowBytes / 4 * (k % 4) + 8 * (k / 4) + 2 * t + half;
  }

  __device__ __forceinline__ static void load(const unsigned char* row, int t, unsigned (&words)[S::kKeyWords]) {
    if constexpr (S::kDim == 64) {
      words[0] = *reinterpret_cast<const unsigned*>(row + 4 * t);
    } else {
#pragma unroll
      for (int w = 0; w < S::kKeyWords; w += 2) {
        const uint2 both = *reinterpret_cast<const uint2*>(row + 16 * w + 8 * t);
        words[w] = both.x, words[w + 1] = both.y;
      }
    }
  }

  __device__ __forceinline__ void multiply(const unsigned (&top)[S::kKeyWords], const unsigned (&bottom)[S::kKeyWords],
                                           float (&products)[S::kKeyTiles][S::kGroups][2]) const {
    int even[S::kKeyTiles][S::kGroups][4] = {}, odd[S::kKeyTiles][S::kGroups][4] = {};  // odd: times 4
#pragma unroll
    for (int k = 0; k < S::kDim / 32; ++k) {
      // A product takes 32 channels: a quarter of a piece, or of 64 channels two quarters, even or odd ones.
      const int piece = k / 4, quarter = S::kDim == 64 ? k : k % 4;
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        int(&sum_of)[4] = (quarter % 2 == 0 ? even : odd)[i][S::group(quarter, piece)];
        if constexpr (S::kDim == 64 && S::kGroups == 1) {
          mma_bytes(sum_of, codes_of(top[0], k), codes_of(bottom[0], k), codes_of(top[0], k + 2),
                    codes_of(bottom[0], k + 2), pairs[i][k][0], pairs[i][k][1]);
        } else if constexpr (S::kDim ==
                             64) {  // the groups are quarters 0 and 1, 2 and 3: half of each product is empty
          mma_bytes(even[i][k], codes_of(top[0], 2 * k), codes_of(bottom[0], 2 * k), 0, 0, pairs[i][k][0], 0);
          mma_bytes(odd[i][k], codes_of(top[0], 2 * k + 1), codes_of(bottom[0], 2 * k + 1), 0, 0, pairs[i][k][1], 0);
        } else {
          mma_bytes(sum_of, codes_of(top[2 * piece], quarter), codes_of(bottom[2 * piece], quarter),
                    codes_of(top[2 * piece + 1], quarter), codes_of(bottom[2 * piece + 1], quarter), pairs[i][k][0],
                    pairs[i][k][1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
#pragma unroll
      for (int group = 0; group < S::kGroups; ++group) {
        const int(&e)[4] = even[i][group], (&o)[4] = odd[i][group];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int high = 4 * e[2 * row] + o[2 * row], low = 4 * e[2 * row + 1] + o[2 * row + 1];
          products[i][group][row] = static_cast<float>(256 * high + low);
        }
      }
    }
  }

  /// The codes of a quarter as bytes, those of odd quarters times 4.
  __device__ static unsigned codes_of(unsigned word, int quarter) {
    return (quarter < 2 ? word : word >> 4) & (quarter % 2 == 0 ? 0x03030303U : 0x0c0c0c0cU);
  }

  /// The sums are what the products give for codes that are all 1.
  __device__ void add_up() {
    unsigned ones[S::kKeyWords];
    for (unsigned& word : ones) word = 0x55555555U;
    float products[S::kKeyTiles][S::kGroups][2];
    multiply(ones, ones, products);
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) {
#pragma unroll
      for (int group = 0; group < S::kGroups; ++group) sum[i][group] = products[i][group][0];
    }
  }
};

/// out += V^T P^T for 16 packed rows at `codes`; weights[n][group]: the transposed pairs of rows 0-7 and 8-15. Tile
/// 8 * piece + 4 * half + quarter has at row g (odd = 0) or g + 8 (odd = 1) the channel
/// quarter * kRowBytes + 32 * piece + 4 * g + 2 * half + odd, or for 64 channels quarter * kRowBytes + 2 * g + odd.
template <class S>
__device__ __forceinline__ void add_packed_values(const unsigned char* codes, int lane,
                                                  const unsigned (&weights)[S::kValueTiles][S::kGroups][2],
                                                  WarpState<S>& state) {
  const int g = lane / 4, t = lane % 4;
  const auto word = [&](int token, int piece) -> unsigned {
    const unsigned char* row = codes + token * S::kRowBytes;
    if constexpr (S::kDim == 64) return *reinterpret_cast<const unsigned short*>(row + 2 * g);
    return *reinterpret_cast<const unsigned*>(row + 32 * piece + 4 * g);
  };
#pragma unroll
  for (int piece = 0; piece < S::kPieces; ++piece) {
    const unsigned w0 = word(token_of_row(2 * t), piece), w1 = word(token_of_row(2 * t + 1), piece);
    const unsigned w2 = word(token_of_row(2 * t + 8), piece), w3 = word(token_of_row(2 * t + 9), piece);
#pragma unroll
    for (int half = 0; half < (S::kDim == 64 ? 1 : 2); ++half) {
      unsigned top[8], bottom[8];  // pairs of the tokens of rows 2t, 2t + 1 and 2t + 8, 2t + 9
      unpack_codes(__byte_perm(w0, w1, half == 0 ? 0x5410 : 0x7632), top);
      unpack_codes(__byte_perm(w2, w3, half == 0 ? 0x5410 : 0x7632), bottom);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
#pragma unroll
        for (int n = 0; n < S::kValueTiles; ++n) {
          const unsigned(&b)[2] = weights[n][S::group(p, piece)];
          mma<Half::kFloat16>(state.out[n][8 * piece + 4 * half + p], top[p], top[p + 4], bottom[p], bottom[p + 4],
                              b[0], b[1]);
        }
      }
    }
  }
}

}  // namespace oscar::cuda
