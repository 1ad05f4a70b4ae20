// SPDX-License-Identifier: MIT
// torch.ops.oscar.new_state, observe, merge, reset and save. Errors: RuntimeError with the tensor's or layer's name.
#include <algorithm>
#include <optional>

#include "base/errors.hpp"
#include "observe_state.hpp"

namespace oscar::operators {
namespace {

template <class... Parts>
[[noreturn]] void refuse(std::int64_t layer, const Parts&... parts) {
  fail("observe, layer ", layer, ": ", parts...);
}

void check_place(const Tensor& x, const char* name, const Tensor& k, std::int64_t layer) {
  if (x.device() == k.device()) return;
  refuse(layer, name, " is on ", text_of(x.device()), ", but k on ", text_of(k.device()));
}

void check_rows(const Tensor& x, const char* name, const Tensor& k, std::int64_t layer) {
  check_place(x, name, k, layer);
  if (x.dim() != k.dim() || (x.dim() != 3 && x.dim() != 4)) {
    refuse(layer, name, " is ", shape_of(x), ", not (tokens, heads, dim) or (batch, tokens, heads, dim) as k ",
           shape_of(k));
  }
  for (std::int64_t i = 0; i < x.dim() - 2; ++i) {
    if (x.size(i) != k.size(i))
      refuse(layer, name, " ", shape_of(x), " and k ", shape_of(k), " are of different tokens");
  }
  if (x.scalar_type() != k.scalar_type()) refuse(layer, name, " is ", x.scalar_type(), ", but k ", k.scalar_type());
}

void check_boundaries(const Tensor& cu, const Tensor& k, std::int64_t layer) {
  if (k.dim() != 3) refuse(layer, "cu_seqlens is for packed tokens (tokens, heads, dim); give a padded batch a mask");
  const bool are_integers = cu.scalar_type() == ScalarType::Int || cu.scalar_type() == ScalarType::Long;
  if (!are_integers || cu.dim() != 1 || cu.size(0) < 2) {
    refuse(layer, "cu_seqlens is ", cu.scalar_type(), " ", shape_of(cu), ", not int32 or int64 (sequences + 1)");
  }
  check_place(cu, "cu_seqlens", k, layer);
}

void check_mask(const Tensor& mask, const Tensor& k, std::int64_t layer) {
  const auto sizes = mask.sizes(), tokens = k.sizes();
  if (mask.scalar_type() != ScalarType::Bool || mask.dim() != k.dim() - 2 ||
      !std::equal(sizes.begin(), sizes.end(), tokens.begin())) {
    refuse(layer, "mask is ", mask.scalar_type(), " ", shape_of(mask), ", not bool of the tokens of k ", shape_of(k));
  }
  check_place(mask, "mask", k, layer);
}

void check(const Rows& rows, std::int64_t layer) {
  const auto& [q, k, v, cu_seqlens, mask, scale] = rows;
  const ScalarType type = k.scalar_type();
  if (type != ScalarType::Float && type != ScalarType::Half && type != ScalarType::BFloat16) {
    refuse(layer, "k is ", type, ", not float32, float16 or bfloat16");
  }
  check_rows(q, "q", k, layer), check_rows(k, "k", k, layer), check_rows(v, "v", k, layer);
  if (q.size(-1) != k.size(-1)) {
    refuse(layer, "rows of q have ", q.size(-1), " channels, those of k ", k.size(-1));
  }
  if (k.size(-2) == 0 || v.size(-2) != k.size(-2) || q.size(-2) % k.size(-2) != 0) {
    refuse(layer, q.size(-2), " heads of q, ", k.size(-2), " of k, ", v.size(-2),
           " of v; q must have a multiple of k's, v as many");
  }
  if (cu_seqlens && mask) refuse(layer, "cu_seqlens and mask exclude each other");
  if (cu_seqlens) check_boundaries(*cu_seqlens, k, layer);
  if (mask) check_mask(*mask, k, layer);
}

DType dtype_of_rows(const Tensor& k) {
  const ScalarType type = k.scalar_type();
  return type == ScalarType::Float ? DType::kF32 : type == ScalarType::Half ? DType::kF16 : DType::kBF16;
}

/// Without the sample's size, which the first call decides.
LayerShape shape_of_rows(const Rows& rows) {
  return {.num_q_heads = static_cast<int>(rows.q.size(-2)),
          .num_kv_heads = static_cast<int>(rows.k.size(-2)),
          .key_dim = static_cast<int>(rows.k.size(-1)),
          .value_dim = static_cast<int>(rows.v.size(-1)),
          .dtype = dtype_of_rows(rows.k)};
}

Layer new_layer(const State& state, const Rows& rows, std::int64_t layer) {
  if (is_capturing(rows.k)) refuse(layer, "observe each layer once before a CUDA graph is captured");
  LayerShape shape = shape_of_rows(rows);
  const HeadShard& shard = state.shard;
  if (shard.total > 0 && shard.first + shape.num_kv_heads > shard.total) {
    refuse(layer, "k has ", shape.num_kv_heads, " heads, but of ", shard.total, " heads this rank's begin at ",
           shard.first);
  }
  const auto row_bytes = static_cast<std::int64_t>(size_of(shape.dtype)) * (shape.key_dim + shape.value_dim);
  shape.sample_size = std::min(state.reservoir, kSampleBytes / (shape.num_kv_heads * row_bytes));
  return {shape, rows.k.device(), make_gpu_layer(shape, rows.k)};
}

void check_same(const Layer& known, const Rows& rows, std::int64_t layer) {
  const Tensor& k = rows.k;
  if (known.device != k.device()) {
    refuse(layer, "k is on ", text_of(k.device()), ", but this layer was on ", text_of(known.device), " before");
  }
  LayerShape shape = shape_of_rows(rows);
  shape.sample_size = known.shape.sample_size;
  if (shape.dtype != known.shape.dtype) {
    refuse(layer, "k is ", name_of(shape.dtype), ", but was ", name_of(known.shape.dtype), " before");
  }
  if (shape == known.shape) return;
  refuse(layer, "q ", shape_of(rows.q), ", k ", shape_of(k), ", v ", shape_of(rows.v),
         " have other heads or dimensions than before");
}

Tensor new_state(std::int64_t reservoir, std::int64_t seed, std::int64_t first_kv_head, std::int64_t total_kv_heads) {
  if (reservoir < 0) fail("reservoir is ", reservoir, ", not a number of tokens");
  if (first_kv_head < 0 || (total_kv_heads <= first_kv_head && (total_kv_heads != 0 || first_kv_head != 0))) {
    fail("no shard of ", total_kv_heads, " KV heads begins at head ", first_kv_head);
  }
  auto state = std::make_unique<State>();
  state->reservoir = reservoir, state->seed = seed, state->shard = {first_kv_head, total_kv_heads};
  return tensor_of(std::move(state));
}

void observe(const Tensor& state, std::int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v,
             const std::optional<Tensor>& cu_seqlens, const std::optional<Tensor>& mask, double query_scale) {
  if (layer < 0) fail("observe: there is no layer ", layer);
  Rows rows{q, k, v, cu_seqlens, mask, query_scale};
  check(rows, layer);
  if (rows.cu_seqlens) rows.cu_seqlens = torch::stable::contiguous(*rows.cu_seqlens);
  if (k.numel() == 0) return;
  const std::shared_ptr<State> own = state_of(state);
  const std::lock_guard lock(own->mutex);
  auto found = own->layers.find(layer);
  if (found == own->layers.end()) {
    found = own->layers.emplace(layer, new_layer(*own, rows, layer)).first;
  } else {
    check_same(found->second, rows, layer);
  }
  found->second.add(rows, own->seed);
}

void reset(const Tensor& state) {
  const std::shared_ptr<State> own = state_of(state);
  const std::lock_guard lock(own->mutex);
  for (auto& [id, layer] : own->layers) layer.clear();
}

/// Errors of the library have a place and advice, which torch's have not.
template <class Task>
void with_torch_errors(const Task& task) {
  try {
    task();
  } catch (const Error& error) {
    fail(error.what(), " (", error.where(), "); ", error.remedy());
  }
}

void merge_states(const Tensor& state, const Tensor& other) {
  const std::shared_ptr<State> to = state_of(state), from = state_of(other);
  if (to == from) fail("merge: a state cannot be merged with itself");
  const std::scoped_lock lock(to->mutex, from->mutex);
  with_torch_errors([&] { merge(*to, *from); });
}

void save_state(const Tensor& state, const std::string& path, const std::string& model, const std::string& data,
                const std::vector<std::int64_t>& expected_layers) {
  const std::shared_ptr<State> own = state_of(state);
  const std::lock_guard lock(own->mutex);
  with_torch_errors([&] { save(*own, path, model, data, expected_layers); });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(oscar, library) {
  library.def("new_state(*, int reservoir=8192, int seed=0, int first_kv_head=0, int total_kv_heads=0) -> Tensor");
  library.def(
      "observe(Tensor(a!) state, int layer, Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens=None, *, "
      "Tensor? mask=None, float query_scale=1.0) -> ()");
  library.def("merge(Tensor(a!) state, Tensor other) -> ()");
  library.def("reset(Tensor(a!) state) -> ()");
  library.def("save(Tensor state, str path, *, str model=\"{}\", str data=\"{}\", int[] expected_layers=[]) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(oscar, CompositeExplicitAutograd, library) {
  library.impl("new_state", TORCH_BOX(&new_state));
  library.impl("observe", TORCH_BOX(&observe));
  library.impl("merge", TORCH_BOX(&merge_states));
  library.impl("reset", TORCH_BOX(&reset));
  library.impl("save", TORCH_BOX(&save_state));
}

}  // namespace oscar::operators
