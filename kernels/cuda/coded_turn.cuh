// SPDX-License-Identifier: MIT
// How a warp turns rows of keys in shared memory: packed rows before RoPE become keys, or keys such rows.
#pragma once

#include <cuda_bf16.h>

#include "kernels/coded_turn.hpp"
#include "kernels/cuda/warp.cuh"
#include "kernels/server_arguments.hpp"

namespace oscar::cuda {

/// The lane's pairs of a head: lane, lane + 32, ....
template <int kDim>
class TurnedPairs {
 public:
  __device__ __forceinline__ TurnedPairs(const oscar_coded_turned& turned, int head) : turned_(turned) {
    const auto* const pairs = static_cast<const CodedTurnPair*>(turned.table) + head * (kDim / 2);
#pragma unroll
    for (int n = 0; n < kOwn; ++n) pairs_[n] = pairs[32 * n + static_cast<int>(threadIdx.x) % 32];
  }

  /// Changes a row of bfloat16 in place: row(i) is where it has channel or coordinate i. All lanes take part.
  template <class Row>
  __device__ __forceinline__ void forth(const Row& row, int position) const {
    change(
        row, [&](const CodedTurnPair& pair, PairValues y) { return turned_pair(pair, y, position, turned_); },
        [](const CodedTurnPair& pair, int i) { return pair.coordinate[i]; },
        [](const CodedTurnPair& pair, int i) { return pair.channel[i]; });
  }
  template <class Row>
  __device__ __forceinline__ void back(const Row& row, int position) const {
    change(
        row, [&](const CodedTurnPair& pair, PairValues k) { return unturned_pair(pair, k, position, turned_.is_far); },
        [](const CodedTurnPair& pair, int i) { return pair.channel[i]; },
        [](const CodedTurnPair& pair, int i) { return pair.coordinate[i]; });
  }

 private:
  static constexpr int kOwn = kDim / 64;

  template <class Row, class Change, class From, class To>
  __device__ __forceinline__ void change(const Row& row, const Change& changed, const From& from, const To& to) const {
    PairValues values[kOwn];
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      values[n] =
          changed(pairs_[n], {__bfloat162float(*row(from(pairs_[n], 0))), __bfloat162float(*row(from(pairs_[n], 1)))});
    }
    __syncwarp();  // every lane has read the row
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      *row(to(pairs_[n], 0)) = __float2bfloat16_rn(values[n].first);
      *row(to(pairs_[n], 1)) = __float2bfloat16_rn(values[n].second);
    }
  }

  CodedTurnPair pairs_[kOwn];
  oscar_coded_turned turned_;
};

/// What is wrong with how keys turn, which may_move from where they were packed; null if nothing is.
[[nodiscard]] inline const char* turned_problem(const oscar_coded_turned& turned, const void* keys, bool may_move) {
  if (turned.table == nullptr) {
    const bool told = turned.positions != nullptr || (turned.is_far | turned.was_far | turned.moved) != 0;
    return told ? "the members of turned are of keys that turn, which need turned.table" : nullptr;
  }
  if (keys == nullptr) return "keys turn, and there are none";
  if (!is_aligned(turned.table, 16)) return "turned.table must be 16-byte aligned";
  if (turned.positions == nullptr) return "keys that turn need positions";
  if (!may_move && (turned.moved != 0 || turned.was_far != turned.is_far)) {
    return "only oscar_coded_unpack() reads rows that moved, or turn otherwise than they were packed";
  }
  const bool known = (turned.is_far | 1) == 1 && (turned.was_far | 1) == 1;
  return known ? nullptr : "is_far and was_far must be 0 or 1";
}

}  // namespace oscar::cuda
