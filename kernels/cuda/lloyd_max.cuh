// SPDX-License-Identifier: MIT
// Grid::kLloydMax of one group of a row, one warp: the operations of encode_group_lloyd_max() in
// kernels/cpu/row_codec.cpp in float64, each rounded once (compile without contraction). Only for .cu files.
#pragma once

#include "kernels/cuda/cache_format.hpp"
#include "kernels/cuda/warp_row.cuh"

namespace oscar::cuda {

template <int kSlots>
class LloydMaxGroup {
 public:
  explicit __device__ LloydMaxGroup(const WarpGroup<kSlots>& group) : group_(group) {}

  /// The group's parameters, in all lanes; code(s) is afterwards that of a lane's slot.
  __device__ GroupParams fit() {
    const auto size = static_cast<double>(group_.size());
    mean_ = group_.sum([&](int s) { return group_.x(s); }) / size;
    const auto centred = [&](int s) { return group_.x(s) - mean_; };
    const double variance = group_.sum([&](int s) { return centred(s) * centred(s); }) / size;
    deviation_ = sqrt(variance + 1e-8);
    const double scale = kLloydMaxStep * deviation_;
    return {static_cast<float>(scale), static_cast<float>(1.5 - mean_ / scale)};
  }

  [[nodiscard]] __device__ int code(int slot) const {
    const double standard = (group_.x(slot) - mean_) / deviation_;
    return (standard >= -kLloydMaxThreshold ? 1 : 0) + (standard >= 0 ? 1 : 0) +
           (standard >= kLloydMaxThreshold ? 1 : 0);
  }

 private:
  const WarpGroup<kSlots>& group_;
  double mean_ = 0, deviation_ = 1;
};

}  // namespace oscar::cuda
