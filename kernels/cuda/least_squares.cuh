// SPDX-License-Identifier: MIT
// Grid::kLeastSquares of one group of a row, one warp: the operations of encode_group_lsq() in
// kernels/cpu/row_codec.cpp in float64, each rounded once (compile without contraction). Only for .cu files.
#pragma once

#include "kernels/arguments.hpp"
#include "kernels/cuda/cache_format.hpp"
#include "kernels/cuda/warp_row.cuh"

namespace oscar::cuda {

template <int kSlots>
class LeastSquaresGroup {
 public:
  /// Channels [begin, end) of the row.
  __device__ LeastSquaresGroup(const WarpRow<kSlots>& row, int begin, int end, double highest_code)
      : row_(row), begin_(begin), end_(end), highest_code_(highest_code), size_(end - begin) {}

  /// The group's parameters, in all lanes; code(s) is afterwards that of a lane's slot.
  __device__ GroupParams fit(LsqStart start) {
    constexpr int kRefits = 3;
    const double mean = sum([&](int s) { return x(s); }) / size_;
    const auto centred = [&](int s) { return x(s) - mean; };
    const double variance = sum([&](int s) { return centred(s) * centred(s); }) / size_;
    scale_ = sqrt(variance) * start.step + 1e-8, low_ = mean - start.centre * scale_;
    for (int refit = 0; refit < kRefits; ++refit) {
      const double code_mean = sum([&](int s) { return code(s); }) / size_;
      const double covariance = sum([&](int s) { return (code(s) - code_mean) * centred(s); });
      const double spread = sum([&](int s) { return (code(s) - code_mean) * (code(s) - code_mean); });
      scale_ = larger(covariance / larger(spread, 1e-6), 1e-8);
      low_ = mean - scale_ * code_mean;
    }
    const double energy = sum([&](int s) { return x(s) * x(s); });
    const double projection = sum([&](int s) { return x(s) * (code(s) * scale_ + low_); });
    return {static_cast<float>(scale_ * (energy / larger(projection, 1e-9))), static_cast<float>(-low_ / scale_)};
  }

  [[nodiscard]] __device__ double code(int slot) const {
    const double position = floor((x(slot) - low_) / scale_ + 0.5);
    return position < 0 ? 0 : highest_code_ < position ? highest_code_ : position;
  }

 private:
  [[nodiscard]] __device__ double x(int slot) const { return row_.x[slot]; }
  __device__ static double larger(double a, double b) { return a < b ? b : a; }

  /// In the order of strand_sum(): a lane has one strand of the group.
  template <class Term>
  __device__ double sum(const Term& term) const {
    static_assert(kStrands == kWarp);
    double strand = 0;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const int channel = row_.channel(s);
      if (channel >= begin_ && channel < end_) strand += term(s);
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const int other = ((row_.lane - begin_) & (kWarp - 1)) ^ step;
      strand += __shfl_sync(kAllLanes, strand, (other + begin_) & (kWarp - 1));
    }
    return strand;
  }

  const WarpRow<kSlots>& row_;
  int begin_, end_;
  double highest_code_, size_, scale_ = 1, low_ = 0;
};

}  // namespace oscar::cuda
