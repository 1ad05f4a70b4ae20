// SPDX-License-Identifier: MIT
// Matrices in the layout that oneDNN multiplies by on a CPU, float32. Its products there are about twice as fast as
// those of libtorch's other BLAS on processors of AMD, and as fast elsewhere. Which instructions are used depends on
// the processor, as with any product of libtorch. Non-goals: gradients (take unpacked()), GPUs.
#pragma once

#include <ATen/core/Tensor.h>

namespace oscar {

/// Returns `weight` (out, in) packed if oneDNN can multiply by it: a float32 matrix on the CPU. Else returns it as it
/// is.
[[nodiscard]] at::Tensor packed(const at::Tensor& weight);
/// Returns the matrix as it was before packed().
[[nodiscard]] at::Tensor unpacked(const at::Tensor& weight);

/// Returns x W^T + b of a packed matrix. x (…, in), float32; bias (out), or undefined.
[[nodiscard]] at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace oscar
