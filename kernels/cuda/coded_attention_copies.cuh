// SPDX-License-Identifier: MIT
// The shapes of the coded decode kernel, and how a warp copies its packed rows: two steps are in flight.
#pragma once

#include "kernels/cuda/coded_attention_params.cuh"
#include "kernels/cuda/coded_layout.hpp"
#include "kernels/cuda/int2_decode_warp.cuh"

namespace oscar::cuda {

/// head_dim, operands of the values at most, key tiles.
template <int kHeadDim, int kMostOperands, int kNumKeyTiles>
struct CodedShape {
  static constexpr int kDim = kHeadDim, kKeyTiles = kNumKeyTiles, kValueTiles = (kKeyTiles + 1) / 2;
  static constexpr int kGroups = 2;  // classes of scales
  static constexpr int kTiles = kDim / 16, kOperands = kMostOperands,
                       kOutTiles = kOperands > kTiles ? kOperands : kTiles;
  static constexpr int kHeads = 4 * kKeyTiles;
  static constexpr bool kClassColumns = kKeyTiles == 1;                      // see CodedHistoryWarp::Weights
  static constexpr int kHalves = kKeyTiles <= 2 ? 4 : 2;                     // of a step: 16 tokens each
  static constexpr int kBlocks = kOutTiles <= 12 && kKeyTiles <= 2 ? 2 : 1;  // at once, for the registers
};

/// A value that is the same in all lanes, which the compiler then knows.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(kAllLanes, x, 0); }

/// The steps of one warp: their pages are looked up and their rows copied to one of two stages in shared memory, where
/// the planes of a step come first and then its scales.
template <class S>
class CodedCopies {
 public:
  static constexpr int kStep = 16 * S::kHalves;    // tokens
  static constexpr int kPlaneBytes = kStep * 16;   // of a stage
  static constexpr int kPlaneFactor = kStep / 32;  // on offsets of planes in tables, which are those of 32 rows

  /// shared: p.warp_bytes of this warp.
  __device__ CodedCopies(const CodedParams& p, const CodedHeadTable& table, int sequence, unsigned char* shared)
      : p_(p),
        target_(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        full_planes_(uniform(table.full_planes)),
        half_planes_(uniform(table.half_planes)),
        table_(p.args.history.pages + static_cast<std::int64_t>(sequence) * p.args.history.pages_per_sequence),
        data_(static_cast<const unsigned char*>(p.args.pages) + (table.first_byte << p.history_shift)) {}

  /// Takes tokens [first, end), of which this warp has every rule.warps-th step from step `warp` on, and begins to
  /// load which pages hold the first of them.
  __device__ __forceinline__ void look_up(int first, int end, int warp) {
    first_ = first + warp * kStep, end_ = end;
    find_pages(first_, pages_[0]);
    find_pages(first_ + stride(), pages_[1]);
  }
  /// True if it has these tokens.
  __device__ bool has(int first, int end, int warp) const { return first_ == first + warp * kStep && end_ == end; }

  /// Begins to copy the first two steps to the two stages.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      copy(target_ + i * p_.stage_bytes, pages_[i], first_ + i * stride());
      commit_copies();
    }
    ahead_ = first_ + 2 * stride();
  }
  /// Tokens from the first step of this warp to the end; from one step to the next.
  __device__ int tokens() const { return end_ - first_; }
  __device__ int stride() const { return p_.rule.warps * kStep; }
  /// Where a stage has the scales of its step.
  __device__ unsigned scales() const { return kPlaneBytes * (full_planes_ + half_planes_); }

  /// Begins to look up the pages of the step that is copied next, and copies it to `stage`.
  __device__ __forceinline__ void look_ahead() { find_pages(ahead_, pages_[0]); }
  __device__ __forceinline__ void copy_ahead(unsigned stage) {
    copy(stage, pages_[0], ahead_);
    commit_copies();
    ahead_ += stride();
  }

 private:
  /// The pages of the lane's tokens in the step from `begin` on, begin + lane and begin + 32 + lane.
  __device__ __forceinline__ void find_pages(int begin, int (&pages)[kPlaneFactor]) const {
    if (begin >= end_) return;
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) pages[i] = table_[token_of(begin, i) >> p_.history_shift];
  }
  /// After the end, the last token again: its weight will be 0.
  __device__ int token_of(int begin, int group) const { return min(begin + 32 * group + lane_, end_ - 1); }

  /// Copies the lane's rows of the step from token `begin` on to `stage`.
  __device__ __forceinline__ void copy(unsigned stage, const int (&pages)[kPlaneFactor], int begin) const {
    if (begin >= end_) return;
    const unsigned plane = 16U << p_.history_shift;
    unsigned to = stage + 16 * lane_;
    const unsigned char* from[kPlaneFactor];
    int slots[kPlaneFactor];
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) {
      slots[i] = token_of(begin, i) & ((1 << p_.history_shift) - 1);
      from[i] = data_ + std::int64_t{p_.page_stride} * pages[i] + slots[i] * 16;
    }
    for (int n = full_planes_; n > 0; --n) copy_plane<16>(to, from, plane);
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) from[i] -= slots[i] * 8;
    for (int n = half_planes_; n > 0; --n) copy_plane<8>(to, from, plane / 2);
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) {
      copy_async<4>(stage + scales() + 4 * lane_ + 128 * i, from[i] - slots[i] * 4);
    }
  }
  /// Copies kBytes of each of the lane's rows, and goes on to the next plane.
  template <int kBytes>
  __device__ __forceinline__ static void copy_plane(unsigned& to, const unsigned char* (&from)[kPlaneFactor],
                                                    unsigned plane) {
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) {
      copy_async<kBytes>(to + 512 * i, from[i]);
      from[i] += plane;
    }
    to += kPlaneBytes;
  }

  const CodedParams& p_;
  unsigned target_;  // the warp's part of shared memory
  int lane_, full_planes_, half_planes_;
  const std::int32_t* table_;        // of pages, of the sequence
  const unsigned char* data_;        // of this KV head in page 0
  int first_ = 0, end_ = 0;          // the first token of the first step, the end of the split
  int ahead_ = 0;                    // the first token of the step that is copied next
  int pages_[2][kPlaneFactor] = {};  // of the first two steps, then [0] of the step that is copied next
};

}  // namespace oscar::cuda
