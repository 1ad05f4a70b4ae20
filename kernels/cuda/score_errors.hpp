// SPDX-License-Identifier: MIT
// The kernels of compare_attention(): what one query's scores, and then its outputs, add to AttentionErrors.
#pragma once

#include "kernels/cuda/softmax.hpp"

namespace oscar::cuda {

/// Of one row: one query of one head.
struct RowErrors {
  double kl = 0;
  double logit_error = 0, logit_norm = 0;
  double output_error = 0, output_norm = 0;
};

/// Fills kl, logit_error and logit_norm, and turns the scores into probabilities as softmax.hpp says.
void compare_scores(const Context& context, const ScoreShape& shape, Windows windows, double* exact, double* window,
                    double* history, DeviceBuffer<RowErrors>& errors);

/// Fills output_error and output_norm; outputs are (rows, dim).
void compare_outputs(const Context& context, const DeviceBuffer<double>& exact, const DeviceBuffer<double>& mixed,
                     std::int64_t dim, DeviceBuffer<RowErrors>& errors);

}  // namespace oscar::cuda
