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
  static constexpr int kHeads = 4 * kKeyTiles, kOperands = kMostOperands;
  static constexpr int kGroups = 2, kTiles = kDim / 16, kOutTiles = kTiles;  // for the window
  static constexpr int kHalves = coded_step(kKeyTiles) / 16;                 // of a step: 16 tokens each
  static constexpr int kTeam = coded_team(kKeyTiles);                        // warps that share their tokens
  static constexpr int kStages = coded_stages(kKeyTiles);                    // of copies
  static constexpr int kOwnPairs = (kOperands / 2 + kTeam - 1) / kTeam;      // of operands of the values, of a warp
  static constexpr bool kClassColumns = kKeyTiles == 1;                      // see CodedTeam
  static constexpr int kWeightSets = kClassColumns ? 1 : 2;
  static constexpr int kBlocks = few_coded_operands(kDim, kOperands) ? 2 : 1;  // at once, for the registers
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

  __device__ CodedCopies(const CodedParams& p, const CodedHeadTable& table, int sequence)
      : p_(p),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        full_planes_(uniform(table.full_planes)),
        half_planes_(uniform(table.half_planes)),
        key_full_planes_(uniform(table.key_full_planes)),
        key_half_planes_(uniform(table.key_half_planes)),
        table_(p.args.history.pages + static_cast<std::int64_t>(sequence) * p.args.history.pages_per_sequence),
        data_(static_cast<const unsigned char*>(p.args.pages) + (table.first_byte << p.history_shift)) {}

  /// Takes tokens [first, end), of which this warp has every rule.warps-th step from step `warp` on, and begins to
  /// load which pages hold the first of them.
  __device__ __forceinline__ void look_up(int first, int end, int warp) {
    first_ = ahead_ = first + warp * kStep, end_ = end;
    find_pages();
  }
  /// True if it has these tokens.
  __device__ bool has(int first, int end, int warp) const { return first_ == first + warp * kStep && end_ == end; }

  /// Tokens from the first step of this warp to the end; from one step to the next.
  __device__ int tokens() const { return end_ - first_; }
  __device__ int stride() const { return p_.rule.warps * kStep; }
  /// Where a stage has the scales of its step.
  __device__ unsigned scales() const { return kPlaneBytes * (full_planes_ + half_planes_); }

  /// Begins to look up the pages of the next step, which the following copies are of.
  __device__ __forceinline__ void look_ahead() {
    ahead_ += stride();
    find_pages();
  }
  /// Begin to copy the lane's rows to the stage at `stage`.
  __device__ __forceinline__ void copy_keys(unsigned stage) const {
    if (ahead_ < end_) with_page_size([&]<int kShift>() { copy_keys_of<kShift>(stage); });
    commit_copies();
  }
  __device__ __forceinline__ void copy_values(unsigned stage) const {
    if (ahead_ < end_) with_page_size([&]<int kShift>() { copy_values_of<kShift>(stage); });
    commit_copies();
  }

 private:
  /// Looks up the pages of the lane's tokens in the step from ahead_ on: lane and 32 + lane.
  __device__ __forceinline__ void find_pages() {
    if (ahead_ >= end_) return;
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) pages_[i] = table_[token(i) >> p_.history_shift];
  }
  /// Returns the lane's token; after the end the last token again, whose weight will be 0.
  __device__ int token(int group) const { return min(ahead_ + 32 * group + lane_, end_ - 1); }
  /// task.operator()<6>() for pages of 64 tokens, so that the compiler knows where their planes lie, else <0>.
  template <class Task>
  __device__ __forceinline__ void with_page_size(const Task& task) const {
    if (p_.history_shift == 6) {
      task.template operator()<6>();
    } else {
      task.template operator()<0>();
    }
  }
  template <int kShift>
  __device__ int shift() const {
    return kShift == 0 ? p_.history_shift : kShift;
  }
  /// Where the rows of 16 bytes lie in plane 0 of the head, and their places in their pages.
  struct Rows {
    const unsigned char* at[kPlaneFactor];
    int slot[kPlaneFactor];
  };
  template <int kShift>
  __device__ __forceinline__ Rows rows() const {
    Rows rows;
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) {
      rows.slot[i] = token(i) & ((1 << shift<kShift>()) - 1);
      rows.at[i] = data_ + std::int64_t{p_.page_stride} * pages_[i] + 16 * rows.slot[i];
    }
    return rows;
  }

  template <int kShift>
  __device__ __forceinline__ void copy_keys_of(unsigned stage) const {
    const Rows rows = this->rows<kShift>();
    copy_planes<16, kShift>(stage, 0, 0, key_full_planes_, rows);
    if (key_half_planes_ > 0) copy_planes<8, kShift>(stage, full_planes_, 0, 1, rows);
    copy_planes<4, kShift>(stage, full_planes_, half_planes_, 1, rows);
  }
  template <int kShift>
  __device__ __forceinline__ void copy_values_of(unsigned stage) const {
    const Rows rows = this->rows<kShift>();
    copy_planes<16, kShift>(stage, key_full_planes_, 0, full_planes_ - key_full_planes_, rows);
    if (half_planes_ > key_half_planes_) copy_planes<8, kShift>(stage, full_planes_, key_half_planes_, 1, rows);
  }

  /// Copies kBytes of each of the lane's rows in `count` planes, to the stage's planes. Before the first of them lie so
  /// many planes of 16 and of 8 bytes. The scales are a plane of 4 bytes, which has no gaps in the stage.
  template <int kBytes, int kShift>
  __device__ __forceinline__ void copy_planes(unsigned stage, int full, int half, int count, const Rows& rows) const {
    const int place = (16 * full + 8 * half) << shift<kShift>(), stride = kBytes << shift<kShift>();
    const unsigned char* from[kPlaneFactor];
#pragma unroll
    for (int i = 0; i < kPlaneFactor; ++i) from[i] = rows.at[i] + (place - (16 - kBytes) * rows.slot[i]);
    constexpr int kLane = kBytes == 4 ? 4 : 16;
    unsigned to = stage + static_cast<unsigned>((full + half) * kPlaneBytes + kLane * lane_);
    const auto copy = [&](int planes) {
#pragma unroll
      for (int n = 0; n < planes; ++n) {
#pragma unroll
        for (int i = 0; i < kPlaneFactor; ++i) {
          copy_async<kBytes>(to + 32 * kLane * i + kPlaneBytes * n, from[i] + stride * n);
        }
      }
#pragma unroll
      for (int i = 0; i < kPlaneFactor; ++i) from[i] += stride * planes;
      to += kPlaneBytes * planes;
    };
    if constexpr (kBytes < 16) {
      copy(1);
    } else {
#pragma unroll 1
      for (; count >= 4; count -= 4) copy(4);
      if ((count & 2) != 0) copy(2);
      if ((count & 1) != 0) copy(1);
    }
  }

  const CodedParams& p_;
  int lane_, full_planes_, half_planes_, key_full_planes_, key_half_planes_;
  const std::int32_t* table_;     // of pages, of the sequence
  const unsigned char* data_;     // of this KV head in page 0
  int first_ = 0, end_ = 0;       // the first token of the first step, the end of the split
  int ahead_ = 0;                 // the first token of the step that is copied next
  int pages_[kPlaneFactor] = {};  // of that step
};

}  // namespace oscar::cuda
