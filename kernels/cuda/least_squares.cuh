// SPDX-License-Identifier: MIT
// Grid::kLeastSquares of one group of a row, one warp: the operations of encode_group_lsq() in
// kernels/cpu/row_codec.cpp in float64, each rounded once (compile without contraction). Only for .cu files.
#pragma once

#include "kernels/cuda/cache_format.hpp"
#include "kernels/cuda/warp_row.cuh"

namespace oscar::cuda {

template <int kSlots>
class LeastSquaresGroup {
 public:
  __device__ LeastSquaresGroup(const WarpGroup<kSlots>& group, double highest_code)
      : group_(group), highest_code_(highest_code) {}

  /// The group's parameters, in all lanes; code(s) is afterwards that of a lane's slot.
  __device__ GroupParams fit(LsqStart start) {
    constexpr int kRefits = 3;
    const auto size = static_cast<double>(group_.size());
    const auto x = [&](int s) { return group_.x(s); };
    const double mean = group_.sum(x) / size;
    const auto centred = [&](int s) { return x(s) - mean; };
    const double variance = group_.sum([&](int s) { return centred(s) * centred(s); }) / size;
    scale_ = sqrt(variance) * start.step + 1e-8, low_ = mean - start.centre * scale_;
    for (int refit = 0; refit < kRefits; ++refit) {
      const double code_mean = group_.sum([&](int s) { return code(s); }) / size;
      const double covariance = group_.sum([&](int s) { return (code(s) - code_mean) * centred(s); });
      const double spread = group_.sum([&](int s) { return (code(s) - code_mean) * (code(s) - code_mean); });
      scale_ = larger(covariance / larger(spread, 1e-6), 1e-8);
      low_ = mean - scale_ * code_mean;
    }
    const double energy = group_.sum([&](int s) { return x(s) * x(s); });
    const double projection = group_.sum([&](int s) { return x(s) * (code(s) * scale_ + low_); });
    return {static_cast<float>(scale_ * (energy / larger(projection, 1e-9))), static_cast<float>(-low_ / scale_)};
  }

  [[nodiscard]] __device__ double code(int slot) const {
    const double position = floor((group_.x(slot) - low_) / scale_ + 0.5);
    return position < 0 ? 0 : highest_code_ < position ? highest_code_ : position;
  }

 private:
  __device__ static double larger(double a, double b) { return a < b ? b : a; }

  const WarpGroup<kSlots>& group_;
  double highest_code_, scale_ = 1, low_ = 0;
};

}  // namespace oscar::cuda
