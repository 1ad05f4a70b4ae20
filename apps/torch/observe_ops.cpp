// SPDX-License-Identifier: MIT
// torch.ops.oscar.new_state, observe, merge, reset and save. Errors: RuntimeError with the tensor's or layer's name.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <exception>

#include "base/errors.hpp"
#include "observe_state.hpp"

namespace oscar::tap {
namespace {

using StatePtr = c10::intrusive_ptr<State>;

std::string text_of(int64_t layer) { return "layer " + std::to_string(layer); }

void check_rows(const Tensor& x, const char* name, const Rows& rows, int64_t layer) {
  const Tensor& k = rows.k;
  TORCH_CHECK(x.device() == k.device(), "observe, ", text_of(layer), ": ", name, " is on ", x.device(), ", but k on ",
              k.device());
  TORCH_CHECK(x.dim() == k.dim() && (x.dim() == 3 || x.dim() == 4), "observe, ", text_of(layer), ": ", name, " is ",
              x.sizes(), ", not (tokens, heads, dim) or (batch, tokens, heads, dim) as k ", k.sizes());
  for (int64_t i = 0; i < x.dim() - 2; ++i) {
    TORCH_CHECK(x.size(i) == k.size(i), "observe, ", text_of(layer), ": ", name, " ", x.sizes(), " and k ", k.sizes(),
                " are of different tokens");
  }
  TORCH_CHECK(x.scalar_type() == k.scalar_type(), "observe, ", text_of(layer), ": ", name, " is ", x.scalar_type(),
              ", but k ", k.scalar_type());
}

void check(const Rows& rows, int64_t layer) {
  const auto type = rows.k.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, "observe, ", text_of(layer), ": k is ",
              type, ", not float32, float16 or bfloat16");
  check_rows(rows.q, "q", rows, layer), check_rows(rows.k, "k", rows, layer), check_rows(rows.v, "v", rows, layer);
  TORCH_CHECK(rows.q.size(-1) == rows.k.size(-1), "observe, ", text_of(layer), ": rows of q have ", rows.q.size(-1),
              " channels, those of k ", rows.k.size(-1));
  TORCH_CHECK(rows.k.size(-2) > 0 && rows.v.size(-2) == rows.k.size(-2) && rows.q.size(-2) % rows.k.size(-2) == 0,
              "observe, ", text_of(layer), ": ", rows.q.size(-2), " heads of q, ", rows.k.size(-2), " of k, ",
              rows.v.size(-2), " of v; q must have a multiple of k's, v as many");
  TORCH_CHECK(!rows.cu_seqlens || !rows.mask, "observe, ", text_of(layer), ": cu_seqlens and mask exclude each other");
  if (rows.cu_seqlens) {
    const Tensor& cu = *rows.cu_seqlens;
    TORCH_CHECK(rows.k.dim() == 3, "observe, ", text_of(layer),
                ": cu_seqlens is for packed tokens (tokens, heads, dim); give a padded batch a mask");
    TORCH_CHECK(cu.dim() == 1 && cu.size(0) >= 2 && (cu.scalar_type() == at::kInt || cu.scalar_type() == at::kLong),
                "observe, ", text_of(layer), ": cu_seqlens is ", cu.scalar_type(), " ", cu.sizes(),
                ", not int32 or int64 (sequences + 1)");
    TORCH_CHECK(cu.device() == rows.k.device(), "observe, ", text_of(layer), ": cu_seqlens is on ", cu.device(),
                ", but k on ", rows.k.device());
  }
  if (!rows.mask) return;
  TORCH_CHECK(rows.mask->scalar_type() == at::kBool && rows.mask->sizes() == rows.k.sizes().slice(0, rows.k.dim() - 2),
              "observe, ", text_of(layer), ": mask is ", rows.mask->scalar_type(), " ", rows.mask->sizes(),
              ", not bool of the tokens of k ", rows.k.sizes());
  TORCH_CHECK(rows.mask->device() == rows.k.device(), "observe, ", text_of(layer), ": mask is on ", rows.mask->device(),
              ", but k on ", rows.k.device());
}

LayerState new_layer(const State& state, const Rows& rows, int64_t layer) {
  const int64_t heads = rows.k.size(-2), key_dim = rows.k.size(-1), value_dim = rows.v.size(-1);
  TORCH_CHECK(!is_capturing(rows.k), "observe, ", text_of(layer),
              ": observe each layer once before a CUDA graph is captured");
  TORCH_CHECK(state.shard.total == 0 || state.shard.first + heads <= state.shard.total, "observe, ", text_of(layer),
              ": k has ", heads, " heads, but of ", state.shard.total, " heads this rank's begin at ",
              state.shard.first);
  const int64_t bytes_per_token = heads * (key_dim + value_dim) * static_cast<int64_t>(rows.k.element_size());
  const int64_t sample = std::min(state.reservoir, kSampleBytes / bytes_per_token);
  const auto f64 = rows.k.options().dtype(at::kDouble), i64 = rows.k.options().dtype(at::kLong);
  const auto sums = [&](int64_t dim) { return at::zeros({heads, dim, dim}, f64); };
  return {rows.q.size(-2),
          sums(key_dim),
          sums(key_dim),
          sums(value_dim),
          at::zeros({heads, key_dim}, f64),
          at::zeros({2}, i64),
          at::empty({sample + 1, heads, key_dim}, rows.k.options()),
          at::empty({sample + 1, heads, value_dim}, rows.k.options()),
          at::full({sample + 1}, -1, i64),
          {}};
}

void check_same(const LayerState& known, const Rows& rows, int64_t layer) {
  TORCH_CHECK(known.k_rows.device() == rows.k.device(), "observe, ", text_of(layer), ": k is on ", rows.k.device(),
              ", but this layer was on ", known.k_rows.device(), " before");
  TORCH_CHECK(known.k_rows.scalar_type() == rows.k.scalar_type(), "observe, ", text_of(layer), ": k is ",
              rows.k.scalar_type(), ", but was ", known.k_rows.scalar_type(), " before");
  TORCH_CHECK(known.num_q_heads == rows.q.size(-2) && known.num_kv_heads() == rows.k.size(-2) &&
                  known.ktk.size(1) == rows.k.size(-1) && known.vtv.size(1) == rows.v.size(-1),
              "observe, ", text_of(layer), ": q ", rows.q.sizes(), ", k ", rows.k.sizes(), ", v ", rows.v.sizes(),
              " have other heads or dimensions than before");
}

StatePtr new_state(int64_t reservoir, int64_t seed, int64_t first_kv_head, int64_t total_kv_heads) {
  TORCH_CHECK(reservoir >= 0, "reservoir is ", reservoir, ", not a number of tokens");
  TORCH_CHECK(first_kv_head >= 0 && (total_kv_heads > first_kv_head || (total_kv_heads == 0 && first_kv_head == 0)),
              "no shard of ", total_kv_heads, " KV heads begins at head ", first_kv_head);
  auto state = c10::make_intrusive<State>();
  state->reservoir = reservoir, state->seed = seed, state->shard = {first_kv_head, total_kv_heads};
  return state;
}

/// The layer's state, made at its first call; tensors of a state outlive inference mode.
LayerState& layer_of(State& state, const Rows& rows, int64_t layer) {
  const c10::InferenceMode off(false);
  const std::lock_guard lock(state.mutex);
  const auto found = state.layers.find(layer);
  if (found == state.layers.end()) return state.layers.emplace(layer, new_layer(state, rows, layer)).first->second;
  check_same(found->second, rows, layer);
  return found->second;
}

void observe(const StatePtr& state, int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v,
             const std::optional<Tensor>& cu_seqlens, const std::optional<Tensor>& mask, double query_scale) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK(layer >= 0, "observe: there is no layer ", layer);
  const Rows rows{q, k, v, cu_seqlens, mask, query_scale};
  check(rows, layer);
  if (k.numel() == 0) return;
  LayerState& sums = layer_of(*state, rows, layer);
  if (!add_rows_on_gpu(sums, rows, state->seed)) add_rows(sums, rows, state->seed);
}

void reset(const StatePtr& state) {
  for (auto& [id, layer] : state->layers) {
    for (Tensor* sums : {&layer.qqt, &layer.ktk, &layer.vtv, &layer.key_sums, &layer.counts}) sums->zero_();
    layer.owners.fill_(-1);
  }
}

/// Errors of the library have a place and advice, which torch's have not.
template <class Task>
void with_torch_errors(const Task& task) {
  try {
    task();
  } catch (const Error& error) {
    TORCH_CHECK(false, error.what(), " (", error.where(), "); ", error.remedy());
  }
}

void merge_states(const StatePtr& state, const StatePtr& other) {
  TORCH_CHECK(state.get() != other.get(), "merge: a state cannot be merged with itself");
  with_torch_errors([&] { merge(*state, *other); });
}

void save_state(const StatePtr& state, const std::string& path, const std::string& model, const std::string& data,
                at::IntArrayRef expected_layers) {
  with_torch_errors([&] { save(*state, path, model, data, expected_layers); });
}

}  // namespace
}  // namespace oscar::tap

TORCH_LIBRARY_FRAGMENT(oscar, library) {
  using namespace oscar::tap;
  library.class_<State>("State");
  library.def(
      "new_state(*, int reservoir=8192, int seed=0, int first_kv_head=0, int total_kv_heads=0) -> "
      "__torch__.torch.classes.oscar.State",
      new_state);
  library.def(
      "observe(__torch__.torch.classes.oscar.State state, int layer, Tensor q, Tensor k, Tensor v, "
      "Tensor? cu_seqlens=None, *, Tensor? mask=None, float query_scale=1.0) -> ()");
  library.impl("observe", c10::DispatchKey::CompositeExplicitAutograd, observe);
  library.def("merge(__torch__.torch.classes.oscar.State state, __torch__.torch.classes.oscar.State other) -> ()",
              merge_states);
  library.def("reset(__torch__.torch.classes.oscar.State state) -> ()", reset);
  library.def(
      "save(__torch__.torch.classes.oscar.State state, str path, *, str model=\"{}\", str data=\"{}\", "
      "int[] expected_layers=[]) -> ()",
      save_state);
}
