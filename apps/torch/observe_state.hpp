// SPDX-License-Identifier: MIT
// What torch.ops.oscar.observe remembers of a running model: per layer, fp64 sums of outer products per KV head on the
// device of the observed tensors, and a uniform sample of (k, v) rows, which stands in for a second pass over the data
// (score-weighted value moments, "sst", need the query moments of everything). Memory is fixed after the first call of
// a layer; nothing waits for the device before save. Non-goals: softmax objectives (oto, fisher), sliding windows.
#pragma once

#include <ATen/Tensor.h>
#include <torch/custom_class.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace oscar::tap {

using at::Tensor;

/// Which KV heads of the model a tensor-parallel rank holds; total 0: all that it sees.
struct HeadShard {
  int64_t first = 0, total = 0;
};

/// Sums as in stats/moments.hpp. Of qqt, ktk and vtv at least the upper triangles are right.
struct LayerState {
  int64_t num_q_heads = 0;
  Tensor qqt, ktk, vtv;   // fp64 (num_kv_heads, dim, dim)
  Tensor key_sums;        // fp64 (num_kv_heads, key_dim)
  Tensor counts;          // int64 (2): tokens, sequences
  Tensor k_rows, v_rows;  // (sample + 1, num_kv_heads, dim), as observed; the last row is scratch
  Tensor owners;          // int64 (sample + 1): which token, counted from 0, lies in a row; -1: none
  /// Scratch memory of add_rows_on_gpu. The last is in use; graphs that were captured may refer to the others.
  std::vector<Tensor> workspaces;

  [[nodiscard]] int64_t num_kv_heads() const { return ktk.size(0); }
  /// Tokens that the sample holds at most.
  [[nodiscard]] int64_t sample() const { return owners.size(0) - 1; }
};

/// At most this many bytes of a layer's state are a sample, whatever `reservoir` says.
inline constexpr int64_t kSampleBytes = int64_t{48} << 20;

struct State : torch::CustomClassHolder {
  int64_t reservoir = 0, seed = 0;
  HeadShard shard;
  std::map<int64_t, LayerState> layers;
  std::mutex mutex;  // of `layers`
};

/// One call's tensors: q (tokens, num_q_heads, key_dim), k (tokens, num_kv_heads, key_dim), v (…, value_dim), or all
/// with a batch dimension before; any strides.
struct Rows {
  Tensor q, k, v;
  std::optional<Tensor> cu_seqlens;  // int32 or int64 (sequences + 1); tokens outside [first, last) do not count
  std::optional<Tensor> mask;        // bool (tokens) or (batch, tokens): which tokens count
  double query_scale = 1;            // on q; scores are query_scale q k / sqrt(key_dim)
};

/// Adds the rows, by ATen alone: any device, exact in fp64.
void add_rows(LayerState& layer, const Rows& rows, int64_t seed);
/// Adds the rows by the kernels of kernels/observe_rows.hpp. Returns false if those do not take such rows. Throws
/// c10::Error if a CUDA graph is being captured and so many tokens were never observed.
[[nodiscard]] bool add_rows_on_gpu(LayerState& layer, const Rows& rows, int64_t seed);
/// A CUDA graph is being captured, so nothing can be allocated that outlives it.
[[nodiscard]] bool is_capturing(const Tensor& k);

/// Adds `other`, of other data. Throws c10::Error: other heads, shapes or shards.
void merge(State& state, const State& other);
/// Writes oscar.statistics.v1. model and data: JSON of ModelIdentity and CalibrationData as in the schema, the latter
/// {}: tokens and a hash of the sums; expected: layers that must have been observed before a fit. Waits for the device.
void save(const State& state, const std::string& path, const std::string& model, const std::string& data,
          at::IntArrayRef expected);

}  // namespace oscar::tap
