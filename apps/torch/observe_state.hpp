// SPDX-License-Identifier: MIT
// What torch.ops.oscar.observe remembers of a running model. A state is a tensor to callers: one number, by which the
// state is found; the state goes when the tensor does. A layer's sums lie on the GPU whose kernels take its rows, and
// nothing waits for that GPU before save; of any other layer they lie in host memory, to which its rows are copied.
// Sums are of outer products per KV head in fp64, as in moments/take.hpp, and a uniform sample of (k, v) rows stands in
// for a second pass over the data (score-weighted value moments, "sst", need the query moments of everything). Memory
// is bounded by the shape. Non-goals: softmax objectives (fisher), sliding windows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "stable_torch.hpp"

namespace oscar::operators {

struct LayerShape {
  int num_q_heads = 0, num_kv_heads = 0, key_dim = 0, value_dim = 0;
  DType dtype = DType::kF32;     // of rows
  std::int64_t sample_size = 0;  // tokens that the sample holds at most
  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

struct LayerSums {
  LayerShape shape;
  MatrixStack qqt, ktk, vtv;     // (num_kv_heads, dim, dim)
  std::vector<double> key_sums;  // (num_kv_heads, key_dim)
  std::int64_t tokens = 0, sequences = 0;
  std::vector<std::byte> k_rows, v_rows;  // (min(tokens, sample_size), num_kv_heads, dim), as observed

  explicit LayerSums(const LayerShape& of);
  /// min(tokens, sample_size)
  [[nodiscard]] std::int64_t sampled() const;
  [[nodiscard]] HeadsView sampled_keys() const;
  [[nodiscard]] HeadsView sampled_values() const;
};

/// Rows of tokens that count, (tokens, heads, dim) of one type and number of tokens.
struct CountedRows {
  HeadsView q, k, v;
  double query_factor = 1;  // on q^T q
  std::int64_t sequences = 0;
};

/// Adds rows of the layer's shape; `seed` decides which of them the sample keeps. Sums are those of the CPU backend.
void add_rows(LayerSums& layer, const CountedRows& rows, std::int64_t seed);

/// Adds sums of other data. Throws DataError that names layer `id` if the shapes differ.
void merge(LayerSums& to, const LayerSums& from, std::int64_t id, std::mt19937_64& random);

/// One call's tensors: q (tokens, num_q_heads, key_dim), k (tokens, num_kv_heads, key_dim), v (…, value_dim), or all
/// with a batch dimension before; any strides.
struct Rows {
  Tensor q, k, v;
  std::optional<Tensor> cu_seqlens;  // int32 or int64 (sequences + 1); tokens outside [first, last) do not count
  std::optional<Tensor> mask;        // bool (tokens) or (batch, tokens): which tokens count
  double query_scale = 1;            // on q; scores are query_scale q k / sqrt(key_dim)

  [[nodiscard]] std::int64_t batch() const { return k.dim() == 4 ? k.size(0) : 1; }
  [[nodiscard]] std::int64_t sequences() const { return cu_seqlens ? cu_seqlens->size(0) - 1 : batch(); }
};

/// A layer whose sums and sample lie on a GPU, in memory that stays where it is: CUDA graphs may hold its address.
class GpuLayer {
 public:
  virtual ~GpuLayer() = default;
  /// Adds rows by the kernels of kernels/observe_rows.hpp, in torch's current stream. Throws RuntimeError if a CUDA
  /// graph is being captured and so many tokens were never observed.
  virtual void add(const Rows& rows, std::int64_t seed) = 0;
  /// These wait for the GPU.
  [[nodiscard]] virtual LayerSums read() const = 0;
  virtual void write(const LayerSums& sums) = 0;
  virtual void clear() = 0;
  /// Another one on the same GPU, of no rows.
  [[nodiscard]] virtual std::unique_ptr<GpuLayer> another() const = 0;
};

/// Returns a layer whose sums are taken on the GPU; null if no kernel takes rows like these.
[[nodiscard]] std::unique_ptr<GpuLayer> make_gpu_layer(const LayerShape& shape, const Tensor& k);
/// A CUDA graph is being captured, so nothing can be allocated that outlives it.
[[nodiscard]] bool is_capturing(const Tensor& k);

/// A sample takes at most this many bytes of a layer's state, whatever `reservoir` says.
inline constexpr std::int64_t kSampleBytes = std::int64_t{48} << 20;

/// A layer on a GPU, or in host memory.
struct Layer {
  LayerShape shape;
  Device device;  // of its rows
  std::unique_ptr<GpuLayer> gpu;
  std::optional<LayerSums> host;  // without `gpu`

  Layer(const LayerShape& shape, const Device& device, std::unique_ptr<GpuLayer> gpu);
  void add(const Rows& rows, std::int64_t seed);
  [[nodiscard]] LayerSums read() const { return gpu ? gpu->read() : *host; }
  void write(LayerSums sums);
  void clear();
};

/// Which KV heads of the model a tensor-parallel rank holds; total 0: all that it sees.
struct HeadShard {
  std::int64_t first = 0, total = 0;
};

struct State {
  std::int64_t reservoir = 0, seed = 0;
  HeadShard shard;
  std::map<std::int64_t, Layer> layers;
  std::mutex mutex;  // of `layers` and of what they hold
};

/// Keeps the state for as long as the result lives: int64 (1) in host memory.
[[nodiscard]] Tensor tensor_of(std::unique_ptr<State> state);
/// Throws RuntimeError if the tensor is no state, or a copy of one that is gone.
[[nodiscard]] std::shared_ptr<State> state_of(const Tensor& tensor);

/// Adds `other`, of other data. Throws DataError: other heads, shapes or shards.
void merge(State& state, const State& other);
/// Writes oscar.statistics.v1. model and data: JSON of ModelIdentity and CalibrationData as in the schema, the latter
/// {}: tokens and a hash of the sums; expected: layers that must have been observed before a fit. Throws DataError: no
/// layer, no tokens, or sums that are not finite.
void save(const State& state, const std::string& path, const std::string& model, const std::string& data,
          const std::vector<std::int64_t>& expected);

}  // namespace oscar::operators
