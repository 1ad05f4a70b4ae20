// SPDX-License-Identifier: MIT
// The scores of a warp of the coded decode kernel: shapes, copies of packed rows ahead of the step that reads them, and
// products with queries, 32 or 64 tokens at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/coded_attention_queries.cuh"
#include "kernels/cuda/coded_layout.hpp"
#include "kernels/cuda/decode_plan.hpp"
#include "oscar/coded_attention.h"

namespace oscar::cuda {

// What the coded decode kernel is given.

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
struct CodedParams {
  oscar_coded_decode_args args;
  PagedRows k_window, v_window;
  CodedTiling tiling;
  SplitRule rule;
  int per_token_inverse;  // see CodedHeads
  int parts, part_heads;  // of a KV head's query heads of all tokens
  int max_splits;
  SplitPlan longest;                // of a sequence of max_length
  int history_shift, window_shift;  // log2 of the page sizes
  int page_stride;                  // of the history, in bytes
  float score_scale, soft_cap;      // softmax scale and soft cap, times log2(e); 0: none
  float* partials;                  // (batch, num_kv_heads * parts): see PartialView
  std::int64_t unit_floats;         // of a (sequence, part)
  int* tickets;                     // (batch, num_kv_heads * parts)
  int most_shared_bytes;            // of any block
  bool fits;                        // whether that is enough for one
  int stage_bytes, warp_bytes;      // of a step's copies; of all that a warp has in shared memory
  int query_bytes;                  // of all that a block has there of its queries
};

/// Launches the kernel for kDim channels a head, and keys that turn or do not. Returns a cudaError_t.
template <int kDim, bool kTurns>
int launch_coded(const CodedParams& p, cudaStream_t stream);

// The shapes of the coded decode kernel, and how a warp copies its packed rows ahead of the step that it reads.
// Products have tokens as rows: scores (16 tokens, heads) = K Q^T, out (channels, heads) = V^T P^T. Lane l stands for g
// = l / 4 and t = l % 4, as in tensor_cores.cuh. A key tile is four heads: lane (g, t) has the scores of tokens g and g
// + 8 with head t of each tile. A value tile is two key tiles, interleaved: column 2t is head t of the first, column 2t
// + 1 of the second.

/// head_dim, operands of the values at most, key tiles, whether keys are turned by their positions as they are read.
template <int kHeadDim, int kMostOperands, int kNumKeyTiles, bool kKeysTurn>
struct CodedShape {
  static constexpr bool kTurns = kKeysTurn;
  static constexpr CodedTiling kTiling{kNumKeyTiles, kMostOperands};
  static constexpr int kDim = kHeadDim, kKeyTiles = kNumKeyTiles, kValueTiles = (kKeyTiles + 1) / 2;
  static constexpr int kHeads = 4 * kKeyTiles, kOperands = kMostOperands;
  static constexpr int kHalves = kTiling.step() / 16;                    // of a step: 16 tokens each
  static constexpr int kTeam = kTiling.team();                           // warps that share their tokens
  static constexpr int kStages = kTiling.stages();                       // of copies
  static constexpr int kOwnPairs = (kOperands / 2 + kTeam - 1) / kTeam;  // of operands of the values, of a warp
  static constexpr bool kWeightBytes = kKeyTiles == 1;  // weights are two bytes, else float16: see CodedTeam
  static constexpr int kWeightsBytes = kTiling.weights_bytes();
  static constexpr int kBlocks = kTiling.warps_at_once() / kMostDecodeWarps;  // of a multiprocessor
};

/// A value that is the same in all lanes, which the compiler then knows.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(kAllLanes, x, 0); }

/// The steps of one warp: their pages are looked up and their rows copied to shared memory, where the planes of a step
/// come first and then its scales. Keys and values are copied apart, the scales with the keys.
template <class S>
class CodedCopies {
 public:
  static constexpr int kStep = 16 * S::kHalves;    // tokens
  static constexpr int kPlaneBytes = kStep * 16;   // of a stage
  static constexpr int kPlaneFactor = kStep / 32;  // on offsets of planes in tables, which are those of 32 rows
  /// Whether a warp keeps where the table has its next page: more than four heads leave no registers for that.
  static constexpr bool kFollowsPages = S::kKeyTiles == 1;

  __device__ CodedCopies(const CodedParams& p, const CodedHeadTable& table, int sequence)
      : p_(p),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        full_planes_(uniform(table.full_planes)),
        half_planes_(uniform(table.half_planes)),
        key_full_planes_(uniform(table.key_full_planes)),
        key_half_planes_(uniform(table.key_half_planes)),
        lane_slot_(lane_ & ((1 << p.history_shift) - 1)),
        table_(p.args.history.pages + static_cast<std::int64_t>(sequence) * p.args.history.pages_per_sequence),
        rows_(kept(static_cast<const unsigned char*>(p.args.pages) + (table.first_byte << p.history_shift) +
                   16 * lane_slot_)),
        scales_(kept(place<4>(full_planes_, half_planes_))) {}

  /// Takes this warp's steps of tokens [first, end), which teams share: each has consecutive ones, of which its warps
  /// take one after the other in turn. Begins to load which pages hold the first.
  __device__ __forceinline__ void look_up(int first, int end, int warp) {
    const int teams = p_.rule.warps / S::kTeam;
    const int tokens = ((end - first - 1) / (stride() * teams) + 1) * stride();  // of a team
    first += warp / S::kTeam * tokens;
    end_ = min(first + tokens, end), first_ = ahead_ = first + warp % S::kTeam * kStep;
    if (kFollowsPages && p_.history_shift == 6) next_ = table_ + ahead_ / 64;
    find_pages();
  }
  /// Tokens from the first step of this warp to the end of its team's; from one step to the next.
  __device__ int tokens() const { return end_ - first_; }
  __device__ int end() const { return end_; }
  __device__ static constexpr int stride() { return S::kTeam * kStep; }
  /// Where a stage has the scales of its step.
  __device__ unsigned scales() const { return kPlaneBytes * (full_planes_ + half_planes_); }

  /// Begins to look up the pages of the next step, which the following copies are of.
  __device__ __forceinline__ void look_ahead() {
    ahead_ += stride();
    if (kFollowsPages && next_ != nullptr) next_ += stride() / 64;
    find_pages();
  }
  /// Begin to copy the lane's rows to the stage at `stage`.
  __device__ __forceinline__ void copy_keys(unsigned stage) {
    if (ahead_ < end_) with_page_size([&]<int kShift>() { copy_keys_of<kShift>(stage); });
    commit_copies();
  }
  __device__ __forceinline__ void copy_values(unsigned stage) const {
    if (ahead_ < end_) with_page_size([&]<int kShift>() { copy_values_of<kShift>(stage); });
    commit_copies();
  }

 private:
  /// Whether pages have 64 tokens, so that one has all of a step.
  [[nodiscard]] __device__ __forceinline__ bool is_one_page() const {
    return kFollowsPages ? next_ != nullptr : p_.history_shift == 6;
  }
  /// Looks up the pages of the lane's tokens in the step from ahead_ on: lane and 32 + lane, after the end of the split
  /// the page of its last token.
  __device__ __forceinline__ void find_pages() {
    if (ahead_ >= end_) return;
    if (is_one_page()) {
      pages_[0] = kFollowsPages ? *next_ : table_[ahead_ / 64];
      return;
    }
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) {
      pages_[i] = table_[min(ahead_ + 32 * i + lane_, end_ - 1) >> p_.history_shift];
    }
  }
  /// task.operator()<n>() for pages of 2^n tokens that servers use, so that the compiler knows where their planes lie,
  /// else <0>.
  template <class Task>
  __device__ __forceinline__ void with_page_size(const Task& task) const {
    if (is_one_page()) {
      task.template operator()<6>();
    } else if (p_.history_shift == 4) {
      task.template operator()<4>();
    } else {
      task.template operator()<0>();
    }
  }
  template <int kShift>
  __device__ int shift() const {
    return kShift == 0 ? p_.history_shift : kShift;
  }
  /// The place in its page of token 32 * i of the step, a multiple of 32 or 0; the lane's lies lane_slot_ further.
  template <int kShift>
  __device__ __forceinline__ int step_slot(int i) const {
    const int first = kShift > 0 && 1 << kShift <= kStep ? 0 : ahead_;
    return (first + 32 * i) & ((1 << shift<kShift>()) - 1);
  }

  /// Returns how many bytes lie between the lane's row of 16 bytes in plane 0 and its row of kBytes behind `full`
  /// planes of 16 and `half` of 8 bytes; a step adds its own.
  template <int kBytes>
  __device__ __forceinline__ int place(int full, int half) const {
    return ((16 * full + 8 * half) << p_.history_shift) - (16 - kBytes) * lane_slot_;
  }
  /// The lane's rows of kBytes at `place`.
  template <int kBytes, int kShift>
  struct Rows {
    static constexpr bool kOnePage = kShift == 6;
    const unsigned char* of_page[kOnePage ? 1 : kPlaneFactor];

    __device__ __forceinline__ Rows(const CodedCopies& of, int place) {
#pragma unroll
      for (int i = 0; i < (kOnePage ? 1 : kPlaneFactor); ++i) {
        of_page[i] = kFollowsPages && kOnePage ? of.page_ : moved(of.rows_, of.p_.page_stride, of.pages_[i]);
        if (!kOnePage || kStep < 64 || place != 0)
          of_page[i] = moved(of_page[i], 1, place + kBytes * of.step_slot<kShift>(i));
      }
    }
    __device__ __forceinline__ const unsigned char* of_group(int i) const {
      return kOnePage ? of_page[0] + 32 * kBytes * i : of_page[i];
    }
  };
  template <int kShift>
  __device__ __forceinline__ void copy_keys_of(unsigned stage) {
    if (kFollowsPages && kShift == 6) page_ = moved(rows_, p_.page_stride, pages_[0]);
    copy_full_planes<kShift>(stage, 0, key_full_planes_);
    if (key_half_planes_ > 0) copy_plane<8, kShift>(stage, full_planes_, place<8>(full_planes_, 0));
    copy_plane<4, kShift>(stage, full_planes_ + half_planes_, scales_);
  }
  template <int kShift>
  __device__ __forceinline__ void copy_values_of(unsigned stage) const {
    copy_full_planes<kShift>(stage, key_full_planes_, full_planes_ - key_full_planes_);
    if (half_planes_ > key_half_planes_) {
      copy_plane<8, kShift>(stage, full_planes_ + key_half_planes_, place<8>(full_planes_, key_half_planes_));
    }
  }

  /// Copies the lane's rows of 16 bytes in planes [first, first + count) to the stage.
  template <int kShift>
  __device__ __forceinline__ void copy_full_planes(unsigned stage, int first, int count) const {
    const int stride = 16 << shift<kShift>();
    Rows<16, kShift> from(*this, first * stride);
    unsigned to = stage + static_cast<unsigned>(first * kPlaneBytes + 16 * lane_);
#pragma unroll 1
    for (; count > 0; count -= 4, to += 4 * kPlaneBytes) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < kPlaneFactor; ++i) {
          if (n < count) copy_async<16>(to + 512 * i + kPlaneBytes * n, from.of_group(i) + stride * n);
        }
      }
#pragma unroll
      for (const unsigned char*& rows : from.of_page) rows = moved(rows, 4, stride);
    }
  }
  /// Copies the lane's rows of 8 or 4 bytes at `place` to plane `plane` of the stage. Scales, rows of 4 bytes, have no
  /// gaps there, others lie 16 bytes apart.
  template <int kBytes, int kShift>
  __device__ __forceinline__ void copy_plane(unsigned stage, int plane, int place) const {
    constexpr int kApart = kBytes == 4 ? 4 : 16;
    const Rows<kBytes, kShift> from(*this, place);
    const unsigned to = stage + static_cast<unsigned>(plane * kPlaneBytes + kApart * lane_);
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) copy_async<kBytes>(to + 32 * kApart * i, from.of_group(i));
  }

  const CodedParams& p_;
  int lane_, full_planes_, half_planes_, key_full_planes_, key_half_planes_;
  int lane_slot_;                 // what the lane adds to a token's place in its page
  const std::int32_t* table_;     // of pages, of the sequence
  const unsigned char* rows_;     // those of this KV head in page 0, for this lane
  int scales_;                    // from there to those of the scales
  int first_ = 0, end_ = 0;       // of this warp's first step, of the team
  int ahead_ = 0;                 // the first token of the step that is copied next
  int pages_[kPlaneFactor] = {};  // of that step
  const std::int32_t* next_ =
      nullptr;  // in the table: that step's page. null unless kFollowsPages and pages have 64 tokens
  const unsigned char* page_ = nullptr;  // the lane's rows in the page that is being copied, where next_ is not null
};

/// The scales of the tokens of a warp's step, as float32 in shared memory.
template <class S>
class StepScales {
 public:
  using Copies = CodedCopies<S>;

  /// scales: an address in shared memory, of 16 bytes a token of a step.
  __device__ explicit StepScales(unsigned scales)
      : lane_(static_cast<int>(threadIdx.x) % kWarp), scales_(kept(scales + static_cast<unsigned>(lane_ / 4 * 16))) {}

  /// Whether rows g and g + 8 of the products of 16 tokens, tile `half` of a step, are the tokens that are as far
  /// behind its middle as those of tile kHalves - 1 - half are before it: where keys turn, these have the same cosines.
  __device__ static constexpr bool is_mirrored(int half) { return S::kTurns && half >= S::kHalves / 2; }
  /// Where a token of the step has its scales: that of row g + 8 * row of tile `half`, which is 16 * half + g + 8 *
  /// row.
  __device__ __forceinline__ unsigned place(int half, int row) const {
    if (!is_mirrored(half)) return scales_ + 16 * (16 * half + 8 * row);
    return scales_ + 16 * (Copies::kStep - 1 - 16 * (S::kHalves - 1 - half) - 8 * row) - 32 * (lane_ / 4);
  }
  /// log2 of what a unit of the scales of a class of values is worth, if they are relative.
  __device__ float value_unit(int of_class) const { return value_units_[of_class]; }
  /// Returns the two scales of one side of the token of a row; a token has four: keys wide, keys narrow, values wide,
  /// values narrow. With weights of bytes those of values are in units of 2^value_unit().
  __device__ __forceinline__ float2 scales(int half, int row, int side) const {
    const uint2 x = load_shared_pair(place(half, row) + 8 * side);
    return {__uint_as_float(x.x), __uint_as_float(x.y)};
  }

  /// The token of the step that row g + 8 * row of tile `half` is.
  __device__ int token(int half, int row) const {
    return is_mirrored(half) ? Copies::kStep - 1 - 16 * (S::kHalves - 1 - half) - lane_ / 4 - 8 * row
                             : 16 * half + lane_ / 4 + 8 * row;
  }
  /// Leaves only the first `valid` tokens of the step their scores.
  __device__ __forceinline__ void drop_behind(int valid, float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
    if (valid >= Copies::kStep) return;
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
      const int i = n / (2 * S::kHalves), half = n / 2 % S::kHalves, row = n % 2;
      if (token(half, row) >= valid) scores[i][half][row] = -INFINITY;
    }
  }

 protected:
  /// 2^(byte / 16 - 8) of a token's four bytes: 0x4b0000XX is 2^23 + XX as float32. With weights of bytes those of
  /// values are relative to the largest of the step's first `valid` tokens, which becomes 2^kWeightBits. bytes:
  /// where they lie.
  __device__ __forceinline__ void share_scales(unsigned bytes, int valid) {
    unsigned own_bytes[Copies::kPlaneFactor];
#pragma unroll
    for (int i = 0; i < Copies::kPlaneFactor; ++i) {
      own_bytes[i] = load_shared_word(bytes + 128 * i + 4 * lane_);
    }
    float shift[2] = {-524296.0F, -524296.0F};
    if constexpr (S::kWeightBytes) {
      unsigned tops[2] = {};
#pragma unroll
      for (int i = 0; i < Copies::kPlaneFactor; ++i) {
        const unsigned own = 32 * i + lane_ < valid ? own_bytes[i] : 0;
        tops[0] = max(tops[0], own >> 16 & 0xff), tops[1] = max(tops[1], own >> 24);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        value_units_[c] = static_cast<float>(__reduce_max_sync(kAllLanes, tops[c])) * 0.0625F - (8 + kWeightBits);
        shift[c] -= value_units_[c];
      }
    }
    const unsigned to = own_place();
#pragma unroll
    for (int i = 0; i < Copies::kPlaneFactor; ++i) {
      const auto scale = [&](int byte) {
        const unsigned bits = __byte_perm(own_bytes[i], 0x4b000000U, 0x7540 + byte);
        return fast_exp2(__fmaf_rn(__uint_as_float(bits), 0.0625F, byte < 2 ? -524296.0F : shift[byte - 2]));
      };
      store_shared(to + 512 * i, make_float4(scale(0), scale(1), scale(2), scale(3)));
    }
    __syncwarp();
  }

  /// Leaves only the tokens [from, end) of the step the scales of their keys.
  __device__ void drop_key_scales(int from, int end) const {
#pragma unroll
    for (int i = 0; i < Copies::kPlaneFactor; ++i) {
      const int token = 32 * i + lane_;
      if (token >= from && token < end) continue;
      store_shared_word(own_place() + 512 * i, 0), store_shared_word(own_place() + 512 * i + 4, 0);
    }
    __syncwarp();
  }

  int lane_;

 private:
  /// Where token lane has its scales; those of token 32 + lane lie 512 bytes behind.
  [[nodiscard]] __device__ unsigned own_place() const { return scales_ + 16 * (lane_ - lane_ / 4); }
  static constexpr float kWeightBits = 15.5F;  // not 16: differences of scores of a million are off by 1/16
  unsigned scales_;
  float value_units_[2];
};

// The scores of one warp of the coded decode kernel: 32 or 64 tokens at a time. CodedShape says which
// lane has what.

template <class S>
class CodedScores : public StepScales<S> {
 public:
  using Copies = CodedCopies<S>;
  using StepScales<S>::StepScales, StepScales<S>::scales, StepScales<S>::is_mirrored;

  /// Takes what keys are multiplied with, and by which operands; both are in shared memory.
  __device__ __forceinline__ void take(const CodedOperands<S>& operands, const CodedQueries<S>& queries) {
    take(operands);
    set_queries(queries.pairs(lane_));
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) set_unit(i, queries.unit(4 * i + lane_ % 4));
  }

  /// What a unit of a score of the lane's head of key tile i is worth.
  __device__ __forceinline__ float unit(int i) const { return unit_[i]; }

  /// Scores over unit() of the warp's tokens, whose copies are at `stage`, with their bytes of scales `scale_bytes`
  /// behind it, of which the first `valid` are there. The other arguments are of keys that turn.
  template <class Sync>
  __device__ __forceinline__ void find(unsigned stage, unsigned scale_bytes, int valid, int,
                                       float (&scores)[S::kKeyTiles][S::kHalves][2], const Sync&) {
    this->share_scales(stage + scale_bytes, valid);
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
      scores[n / (2 * S::kHalves)][n / 2 % S::kHalves][n % 2] = 0;
    }
    add_all(stage, scores);
  }

 protected:
  using StepScales<S>::lane_;

  __device__ __forceinline__ void take(const CodedOperands<S>& operands) {
    keys_ = static_cast<unsigned>(__cvta_generic_to_shared(operands.key));
#pragma unroll
    for (const int c : {kWideClass, kNarrowClass}) {
      end_[c][0] = uniform(operands.pairs.key_end[c][0]), end_[c][1] = uniform(operands.pairs.key_end[c][1]);
    }
  }
  /// Pairs of operands.
  [[nodiscard]] __device__ __forceinline__ int operand_pairs() const { return end_[kNarrowClass][1]; }
  __device__ __forceinline__ void set_unit(int i, float unit) { unit_[i] = unit; }

  /// Adds the products with the keys whose copies are at `stage`.
  __device__ __forceinline__ void add_all(unsigned stage, float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
    // The lane's row in plane 0 of 32 tokens, and of the next 32.
    unsigned rows[Copies::kPlaneFactor] = {stage + 16 * (is_mirrored(1) && lane_ >= 16 ? 47 - lane_ : lane_)};
    if (S::kHalves > 2) rows[Copies::kPlaneFactor - 1] = stage + 512 + 16 * (is_mirrored(2) ? lane_ ^ 15 : lane_);
#pragma unroll
    for (int from = 0; from < S::kHalves; from += kAtOnce) {
      add_products(kWideClass, rows, from, scores);
      add_products(kNarrowClass, rows, from, scores);
    }
  }

  /// words: the address of the lane's first ones. Finds products with the middle of all codes, which are to be
  /// subtracted from others.
  __device__ __forceinline__ void set_queries(unsigned words) {
    queries_ = kept(words);
    const auto ones = [](int, unsigned, unsigned(&x)[4]) { x[0] = x[1] = x[2] = x[3] = 0xffffffffU; };
#pragma unroll
    for (const int c : {kWideClass, kNarrowClass}) {
      int sums[S::kKeyTiles][1][4] = {};
      multiply(c, ones, sums);
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) middle_[c][i] = 128 * sums[i][0][0] + sums[i][0][1] / 2;
    }
  }

 private:
  static constexpr int kAtOnce = S::kKeyTiles <= 2 ? S::kHalves : 2;  // halves whose products fit registers

  /// Adds the products of a class with kAtOnce halves, from half `from` on, to their scores.
  __device__ __forceinline__ void add_products(int of_class, const unsigned (&rows)[Copies::kPlaneFactor], int from,
                                               float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
    if (begin_of(of_class) == end_[of_class][1]) return;
    const auto load = [&](int group, unsigned offset, unsigned(&x)[4]) {
      load_matrices<false>(rows[from / 2 + group] + Copies::kPlaneFactor * offset, x);
    };
    int sums[S::kKeyTiles][kAtOnce][4] = {};
    multiply(of_class, load, sums);
#pragma unroll
    for (int n = 0; n < 2 * kAtOnce; ++n) {
      const int half = n / 2, row = n % 2;
      const float2 s = scales(from + half, row, 0);
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        // What wraps around on the way comes back: the result is less than 2^31.
        const int(&sum)[4] = sums[i][half];
        const unsigned product = 256U * static_cast<unsigned>(sum[2 * row]) + static_cast<unsigned>(sum[2 * row + 1]) -
                                 static_cast<unsigned>(middle_[of_class][i]);
        scores[i][from + half][row] +=
            (of_class == kWideClass ? s.x : s.y) * static_cast<float>(static_cast<int>(product));
      }
    }
  }

  /// Where the pairs of a class begin.
  [[nodiscard]] __device__ __forceinline__ int begin_of(int of_class) const {
    return of_class == kWideClass ? 0 : end_[kWideClass][1];
  }

  /// multiply_keys() of all operands of a class.
  template <class Load, int kCount>
  __device__ __forceinline__ void multiply(int of_class, const Load& load, int (&sums)[S::kKeyTiles][kCount][4]) const {
    const int* const end = end_[of_class];
    multiply_keys<false, S>(keys_, queries_, begin_of(of_class), end[0], load, sums);
    multiply_keys<true, S>(keys_, queries_, end[0], end[1], load, sums);
  }

  unsigned keys_, queries_;      // where they lie in shared memory
  int end_[2][2];                // of the pairs of keys, as in the table
  int middle_[2][S::kKeyTiles];  // of products, by class
  float unit_[S::kKeyTiles];
};

}  // namespace oscar::cuda
