// SPDX-License-Identifier: MIT
// exp of many values that are not positive, as a softmax needs it: vectorised by the compiler, the same bits on every
// machine. Equation: exp(x) = 2^n exp(r), n = round(x / ln 2), exp(r) by its Taylor polynomial. Relative error below
// 1e-15 (double), 2e-7 (float). Values below -708 (-87) give 0.
#pragma once

#include <span>

namespace oscar {

void exp_in_place(std::span<double> values);
void exp_in_place(std::span<float> values);

}  // namespace oscar
