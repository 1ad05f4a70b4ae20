// SPDX-License-Identifier: MIT
// The one place where heavy arithmetic happens: a handful of coarse operations. kernels/reference defines the results
// (textbook loops, fp64); the CPU and the GPU must agree with it as kernels/README.md says. Calls are synchronous,
// arguments and results lie in host memory (or in files: HeadsView::file), and no result depends on the number of
// threads. Non-goals: a tensor library, asynchronous calls.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/status.hpp"
#include "kernels/mixed_sequence.hpp"
#include "kernels/types.hpp"

namespace oscar {

/// How much work a backend wants at once.
struct WorkShape {
  /// Layers whose moments to accumulate at the same time, each from a thread of its own.
  int concurrent_layers = 1;
  /// Layers whose eigenproblems and clip fits to collect before solving them.
  int layers_per_batch = 1;
  /// Layers whose clip ratios to fit at the same time, beside those.
  int concurrent_clip_fits = 1;
  /// Bytes of rows that one call should get at most, but for half a part: parts stay whole. 1 = a part at a time.
  std::int64_t bytes_per_call = 1;
};

/// May be called from several threads at a time.
class Backend {
 public:
  virtual ~Backend() = default;

  /// One line for people: "cpu, 2 threads".
  [[nodiscard]] virtual std::string description() const = 0;
  [[nodiscard]] virtual WorkShape work_shape() const { return {}; }

  /// grams[h] += sum over tokens t of all parts and over the g = x.num_heads / grams.count rows of group h of row^T
  /// row. Each part x: (num_tokens, grams.count * g, grams.dim).
  virtual void accumulate_grams(std::span<const HeadsView> parts, MatrixStack& grams) = 0;

  /// grams[h] += sum over tokens t of max(w, 0) v[t, h]^T v[t, h] and weights[h] += sum of w, where
  /// w = k[t, h] forms[h] k[t, h]^T for symmetric forms. keys[i] and values[i]: the same tokens.
  virtual void accumulate_weighted_grams(std::span<const HeadsView> keys, const MatrixStack& forms,
                                         std::span<const HeadsView> values, MatrixStack& grams,
                                         std::span<double> weights) = 0;

  /// See FisherSums; the softmax is causal inside each sequence.
  virtual void accumulate_fisher_sums(const QkvView& qkv, std::span<const SequenceRange> sequences, Windows windows,
                                      FisherSums& sums) = 0;

  /// Symmetric eigenproblems, one result per matrix. Throws NumericalError if one does not converge.
  [[nodiscard]] virtual std::vector<Eigenpairs> eigh(const MatrixStack& symmetric) = 0;

  /// decoded = decode(encode(rows)); rows and decoded: (n, head_dim), which may be the same memory. kServing rounds
  /// decoded rows to bfloat16. codec: of one head.
  virtual void quantize(std::span<const float> rows, int head_dim, const HistoryCodec& codec, Precision precision,
                        std::span<float> decoded) = 0;

  /// The sequence rotated and kept for attention and its errors.
  [[nodiscard]] virtual std::unique_ptr<MixedSequence> hold(const SequenceInput& input) = 0;

  /// Returns what MixedSequence::compare() returns for each sequence. This backend holds all of them; their native rows
  /// and the positions of their queries are equal, so that exact attention need be computed only once.
  [[nodiscard]] virtual std::vector<std::vector<std::vector<AttentionErrors>>> compare(
      std::span<const ComparedSequence> sequences);
};

/// `device`: "auto", "cpu", "cuda" or "cuda:N". "auto" takes a GPU if the build and the machine have one that works,
/// and says so if it falls back. Throws BackendUnavailable if the device asked for is not there, UsageError if the name
/// is none of these. `status` must outlive the backend.
[[nodiscard]] std::unique_ptr<Backend> make_backend(const std::string& device, Status& status);

/// There is no GPU to be used, rather than one that cannot be used.
struct NoGpu : BackendUnavailable {
  using BackendUnavailable::BackendUnavailable;
};

/// kernels/cpu: always there. kernels/cuda or kernels/absent: the second throws BackendUnavailable.
[[nodiscard]] std::unique_ptr<Backend> make_cpu_backend();
[[nodiscard]] std::unique_ptr<Backend> make_cuda_backend(int ordinal, Status& status);
/// Number of usable GPUs; 0 without CUDA.
[[nodiscard]] int cuda_device_count();

}  // namespace oscar
