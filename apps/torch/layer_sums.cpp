// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "base/errors.hpp"
#include "kernels/backend.hpp"
#include "observe_state.hpp"

namespace oscar::operators {
namespace {

Backend& arithmetic() {
  static const std::unique_ptr<Backend> backend = make_cpu_backend();
  return *backend;
}

std::size_t bytes_per_token(const LayerShape& shape, int dim) {
  return size_of(shape.dtype) * static_cast<std::size_t>(shape.num_kv_heads) * static_cast<std::size_t>(dim);
}

HeadsView view_of(const std::vector<std::byte>& rows, const LayerSums& layer, int dim) {
  return {rows.data(), layer.shape.dtype, layer.sampled(), layer.shape.num_kv_heads, dim};
}

/// grams += factor * sum of x^T x over tokens and the heads of a group.
void add_scaled_grams(const HeadsView& x, double factor, MatrixStack& grams) {
  MatrixStack added(grams.count, grams.dim);
  arithmetic().accumulate_grams(std::span(&x, 1), added);
  for (std::size_t i = 0; i < grams.data.size(); ++i) grams.data[i] += factor * added.data[i];
}

void add_key_sums(const HeadsView& k, std::vector<double>& sums) {
  std::vector<double> row(sums.size());
  for (std::int64_t t = 0; t < k.num_tokens; ++t) {
    doubles_from(k.dtype, k.data + t * k.bytes_per_token(), row.size(), row.data());
    std::transform(sums.begin(), sums.end(), row.begin(), sums.begin(), std::plus<>());
  }
}

/// The slot of token number i of a uniform sample of n (Vitter's algorithm R, with a hash for the random number): i
/// itself while there is room, else one of i + 1 slots, of which n exist. kernels/cuda/observe.cu says the same.
std::int64_t slot_in_sample(std::int64_t i, std::uint32_t seed, std::int64_t n) {
  if (i < n) return i;
  std::uint32_t h = static_cast<std::uint32_t>(i) ^ seed;
  for (int round = 0; round < 2; ++round) h = (h ^ h >> 16) * 0x45d9f3bU;
  h ^= h >> 16;
  return static_cast<std::int64_t>(std::uint64_t{h} * static_cast<std::uint64_t>(i + 1) >> 32);
}

void add_to_sample(LayerSums& layer, const CountedRows& rows, std::int64_t seed) {
  const std::int64_t n = layer.shape.sample_size, room = std::min(n, layer.tokens + rows.k.num_tokens);
  for (const auto& [kept, x] : {std::pair{&layer.k_rows, &rows.k}, std::pair{&layer.v_rows, &rows.v}}) {
    const auto size = static_cast<std::size_t>(x->bytes_per_token());
    kept->reserve(static_cast<std::size_t>(n) * size);  // once; what is not used is never touched
    kept->resize(static_cast<std::size_t>(room) * size);
    for (std::int64_t t = 0; t < x->num_tokens; ++t) {
      const std::int64_t slot = slot_in_sample(layer.tokens + t, static_cast<std::uint32_t>(seed), n);
      if (slot < n)
        std::memcpy(kept->data() + static_cast<std::size_t>(slot) * size, x->data + t * x->bytes_per_token(), size);
    }
  }
}

/// How many of `n` rows, drawn without replacement of a and b rows, are among the a.
std::int64_t draw(std::int64_t n, std::int64_t a, std::int64_t b, std::mt19937_64& random) {
  std::int64_t taken = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto left = static_cast<std::uint64_t>(a - taken + b - (i - taken));
    if (random() % left < static_cast<std::uint64_t>(a - taken)) ++taken;
  }
  return taken;
}

/// `n` different places of [0, of), in random order.
std::vector<std::size_t> choose(std::int64_t n, std::int64_t of, std::mt19937_64& random) {
  std::vector<std::size_t> places(static_cast<std::size_t>(of));
  std::iota(places.begin(), places.end(), 0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    std::swap(places[i], places[i + random() % (places.size() - i)]);
  }
  places.resize(static_cast<std::size_t>(n));
  return places;
}

void append(const std::vector<std::byte>& rows, const std::vector<std::size_t>& places, std::size_t row_bytes,
            std::vector<std::byte>& out) {
  for (const std::size_t place : places) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(place * row_bytes);
    out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(row_bytes));
  }
}

/// A uniform sample of both layers' tokens.
void merge_samples(LayerSums& to, const LayerSums& from, std::mt19937_64& random) {
  const std::int64_t size = to.shape.sample_size, n = std::min(size, to.tokens + from.tokens);
  const std::int64_t own = to.tokens + from.tokens <= size ? to.tokens : draw(n, to.tokens, from.tokens, random);
  const std::vector<std::size_t> kept = choose(own, to.sampled(), random);
  const std::vector<std::size_t> added = choose(n - own, from.sampled(), random);
  for (const auto& [rows, more, dim] : {std::tuple{&to.k_rows, &from.k_rows, to.shape.key_dim},
                                        std::tuple{&to.v_rows, &from.v_rows, to.shape.value_dim}}) {
    std::vector<std::byte> both;
    append(*rows, kept, bytes_per_token(to.shape, dim), both);
    append(*more, added, bytes_per_token(to.shape, dim), both);
    *rows = std::move(both);
  }
}

}  // namespace

LayerSums::LayerSums(const LayerShape& of)
    : shape(of),
      qqt(of.num_kv_heads, of.key_dim),
      ktk(of.num_kv_heads, of.key_dim),
      vtv(of.num_kv_heads, of.value_dim),
      key_sums(static_cast<std::size_t>(of.num_kv_heads) * static_cast<std::size_t>(of.key_dim)) {}

std::int64_t LayerSums::sampled() const { return std::min(tokens, shape.sample_size); }
HeadsView LayerSums::sampled_keys() const { return view_of(k_rows, *this, shape.key_dim); }
HeadsView LayerSums::sampled_values() const { return view_of(v_rows, *this, shape.value_dim); }

void add_rows(LayerSums& layer, const CountedRows& rows, std::int64_t seed) {
  add_scaled_grams(rows.q, rows.query_factor, layer.qqt);
  add_scaled_grams(rows.k, 1, layer.ktk);
  add_scaled_grams(rows.v, 1, layer.vtv);
  add_key_sums(rows.k, layer.key_sums);
  if (layer.shape.sample_size > 0) add_to_sample(layer, rows, seed);
  layer.tokens += rows.k.num_tokens, layer.sequences += rows.sequences;
}

void merge(LayerSums& to, const LayerSums& from, std::int64_t id, std::mt19937_64& random) {
  if (to.shape != from.shape) {
    throw DataError("heads, dimensions, types or samples of two states differ", "layer " + std::to_string(id),
                    "merge states of one model, made with the same reservoir");
  }
  if (to.shape.sample_size > 0) merge_samples(to, from, random);
  for (const auto& [sums, more] : {std::pair{&to.qqt.data, &from.qqt.data}, std::pair{&to.ktk.data, &from.ktk.data},
                                   std::pair{&to.vtv.data, &from.vtv.data}, std::pair{&to.key_sums, &from.key_sums}}) {
    std::transform(sums->begin(), sums->end(), more->begin(), sums->begin(), std::plus<>());
  }
  to.tokens += from.tokens, to.sequences += from.sequences;
}

}  // namespace oscar::operators
