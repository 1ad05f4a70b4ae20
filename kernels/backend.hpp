// SPDX-License-Identifier: MIT
// The one place where heavy arithmetic happens: a handful of coarse operations. The CPU backend defines the result
// (textbook algorithms, fp64 accumulation); others must agree with it as kernels/README.md says. Calls are synchronous,
// arguments and results live in host memory, and no result depends on the number of threads. Non-goals: a tensor
// library, asynchronous calls, ownership of data.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/types.hpp"

namespace oscar {

class Backend {
 public:
  virtual ~Backend() = default;

  /// One line for people: "cpu, 2 threads".
  [[nodiscard]] virtual std::string description() const = 0;

  /// grams[h] += sum over tokens t and over the g = x.num_heads / grams.count rows of group h of w[t, h] * row^T row.
  /// weights: (num_tokens, grams.count), or empty for 1. x: (num_tokens, grams.count * g, grams.dim).
  virtual void accumulate_grams(HeadsView x, std::span<const double> weights, MatrixStack& grams) = 0;

  /// energies[t, h] = x[t, h] forms[h] x[t, h]^T for symmetric forms; (num_tokens, num_heads).
  virtual void row_energies(HeadsView x, const MatrixStack& forms, std::span<double> energies) = 0;

  /// grams[h] += sum over queries and the g query heads of o^T o, o = causal softmax(q k^T / sqrt(d)) v inside each
  /// sequence.
  virtual void accumulate_output_grams(const QkvView& qkv, std::span<const SequenceRange> sequences,
                                       MatrixStack& grams) = 0;

  /// grams[h] += sum over tokens of e^T e, where y = x[t, h] rotation in fp64 and e = decode(encode(fp32(y))) - y.
  virtual void accumulate_residual_grams(HeadsView x, const MatrixStack& rotation, const RowCodec& codec,
                                         MatrixStack& grams) = 0;

  /// Symmetric eigenproblems, one result per matrix. Throws NumericalError if one does not converge.
  [[nodiscard]] virtual std::vector<Eigenpairs> eigh(const MatrixStack& symmetric) = 0;

  /// rows[t, h] = x[t, h] rotated_from_native (1 matrix, or one per KV head: query head h uses matrix h / g, where
  /// g = x.num_heads / count). kServing rounds x, the matrix and the product to bfloat16. rows: (num_tokens, num_heads,
  /// d).
  virtual void rotate(HeadsView x, const MatrixStack& rotated_from_native, Precision precision,
                      std::span<float> rows) = 0;

  /// decoded = decode(encode(rows)); rows and decoded: (n, head_dim). kServing rounds decoded rows to bfloat16.
  /// codes: filled if not null.
  virtual void quantize(std::span<const float> rows, int head_dim, const RowCodec& codec, Precision precision,
                        std::span<float> decoded, QuantizedRows* codes) = 0;

  /// out (num_queries, Hq, d_v) = attention over the mixed-precision keys and values.
  virtual void attend(const MixedAttention& mixed, std::span<float> out) = 0;

  /// Errors of `mixed` against exact causal attention over `exact` (same keys; exact.q rows = mixed.q rows), one entry
  /// per query head.
  [[nodiscard]] virtual std::vector<AttentionErrors> compare_attention(const QkvView& exact,
                                                                       const MixedAttention& mixed) = 0;
};

/// `device`: "auto", "cpu", "cuda" or "cuda:N". "auto" takes a GPU if the build and the machine have one.
/// Throws BackendUnavailable if the device asked for is not there, UsageError if the name is none of these.
[[nodiscard]] std::unique_ptr<Backend> make_backend(const std::string& device);

/// Keeps BLAS and LAPACK on the calling thread, for the whole process: main calls it before anything computes.
/// libtorch's own calls reach the same BLAS, and its sums must not depend on whether one of ours came first.
void keep_blas_on_calling_thread();

/// kernels/cpu: always there. kernels/cuda or kernels/absent: the second throws BackendUnavailable.
[[nodiscard]] std::unique_ptr<Backend> make_cpu_backend();
[[nodiscard]] std::unique_ptr<Backend> make_cuda_backend(int ordinal);
/// Number of usable GPUs; 0 without CUDA.
[[nodiscard]] int cuda_device_count();

}  // namespace oscar
