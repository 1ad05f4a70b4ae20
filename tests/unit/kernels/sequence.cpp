// SPDX-License-Identifier: MIT
#include "unit/kernels/sequence.hpp"

#include <cmath>

namespace oscar::test {
namespace {

MatrixStack scaled_matrices(int count, int dim, std::uint32_t seed) {
  MatrixStack matrices = gaussian_matrices(count, dim, seed);
  for (double& x : matrices.data) x /= std::sqrt(dim);
  return matrices;
}

/// A clip ratio for each KV head; the first is not clipped.
std::vector<double> head_ratios(int kv_heads) {
  std::vector<double> ratios(1);
  for (int head = 1; head < kv_heads; ++head) ratios.push_back(0.98 - 0.06 * head);
  return ratios;
}

}  // namespace

Sequence::Sequence(const Shape& shape_, int heads_, int kv_heads_, std::vector<std::int64_t> positions_, int value_dim)
    : shape(shape_),
      heads(heads_),
      kv_heads(kv_heads_),
      positions(std::move(positions_)),
      key{scaled_matrices(kv_heads_, shape_.head_dim, 40), scaled_matrices(kv_heads_, shape_.head_dim, 45), {}},
      value{gaussian_matrices(1, value_dim == 0 ? shape_.head_dim : value_dim, 41), {}, {}} {
  key.mean.assign(key.rotation.data.begin(), key.rotation.data.begin() + kv_heads * shape.head_dim);
  if (value_dim != 0) value.read_rotation = scaled_matrices(1, value_dim, 46);
  Shape queries = shape, values = shape;
  if (!positions.empty()) queries.tokens = static_cast<std::int64_t>(positions.size());
  values.head_dim = value.rotation.dim;
  q = activations(queries, heads, 42), k = activations(shape, kv_heads, 43), v = activations(values, kv_heads, 44);
}

SequenceInput Sequence::input(Precision precision, bool rotated) const {
  SequenceInput input{{heads_view(q, "q"), heads_view(k, "k"), heads_view(v, "v")},
                      positions,
                      rotated ? &key : nullptr,
                      rotated ? &value : nullptr,
                      precision};
  if (!rotated && !decoded_k.shape.empty()) input.decoded_k = heads_view(decoded_k, "k");
  if (!rotated && !decoded_v.shape.empty()) input.decoded_v = heads_view(decoded_v, "v");
  if (rule) input.scores = &*rule;
  return input;
}

void add_sequences(const Shape& shape, std::vector<Sequence>& all) {
  const std::int64_t last = shape.tokens - 1;
  all.emplace_back(shape, 6, 2, std::vector<std::int64_t>{});
  all.emplace_back(shape, 5, 1, std::vector<std::int64_t>{0, last / 3, last / 3, last / 2, last});
  all.emplace_back(shape, 3, 3, std::vector<std::int64_t>{last});
}

HistoryCodec coded(int kv_heads, int dim) {
  HistoryCodec codec;
  codec.coded = coded_formats(kv_heads, dim);
  return codec;
}

std::vector<HistoryCodecs> codecs_for(const Sequence& s) {
  const int key_dim = s.shape.head_dim, value_dim = s.value.rotation.dim;
  std::vector<HistoryCodecs> all{
      {RowCodec{.clip_ratio = 0.96}, RowCodec{.clip_ratio = 0.92}},
      {RowCodec{}, {}},
      {{}, RowCodec{.group_size = 8}},
      {RowCodec{.levels = 16, .group_size = 8, .clip_ratio = 0.9, .clip_search = ClipSearch::kBisect}, RowCodec{}},
      {RowCodec{.clip_ratio = 0.96, .grid = Grid::kLloydMax}, RowCodec{.scale_dtype = DType::kF16}},
      {HistoryCodec{{}, head_ratios(s.kv_heads)}, HistoryCodec{{.group_size = 8}, head_ratios(s.kv_heads)}},
      {}};
  if (key_dim % 8 == 0 && value_dim % 8 == 0) {
    all.push_back({coded(s.kv_heads, key_dim), coded(s.kv_heads, value_dim)});
    all.push_back({coded(s.kv_heads, key_dim), RowCodec{}});
  }
  for (const int group : {16, 32, 64}) {
    if (key_dim % group != 0 || value_dim % group != 0) continue;
    all.push_back({RowCodec{.group_size = group}, RowCodec{.levels = 5, .group_size = group, .clip_ratio = 0.9}});
  }
  return all;
}

std::vector<ScoreRule> score_rules(int heads) {
  std::vector<float> sinks;
  for (int head = 0; head < heads; ++head) sinks.push_back(3 - static_cast<float>(head));
  return {{1.5, 0, {}}, {0, 13, {}}, {0, 0, sinks}, {2, 33, sinks}};
}

}  // namespace oscar::test
