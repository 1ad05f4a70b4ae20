// SPDX-License-Identifier: MIT
#include "conformance/samples.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <sstream>

#include "base/json.hpp"

namespace oscar::test {

namespace {

const Json& cases() {
  static const Json all = read_json(OSCAR_TEST_CASES);
  return all;
}

/// Cases with one value for each member, in place of arrays of values.
std::vector<Json> expanded(const Json& entry) {
  for (const auto& [name, values] : entry.items()) {
    if (!values.is_array()) continue;
    std::vector<Json> all;
    for (const Json& value : values) {
      Json one = entry;
      one[name] = value;
      for (Json& each : expanded(one)) all.push_back(std::move(each));
    }
    return all;
  }
  return {entry};
}

std::vector<Json> cases_of(const std::string& list, Tier tier) {
  std::vector<Json> all;
  for (const auto& [name, entries] : cases().at(list).items()) {
    for (const Json& entry : entries)
      for (Json& one : expanded(entry)) all.push_back(std::move(one));
    if (name == (tier == Tier::kSmall ? "small" : tier == Tier::kMedium ? "medium" : "large")) break;
  }
  return all;
}

DType dtype_at(const Json& one, const char* name) { return dtype_from_name(one.value(name, std::string("float32"))); }

Shape shape_at(const Json& one) {
  return {dtype_at(one, "dtype"), one.at("dim").get<int>(), one.value("tokens", std::int64_t{1})};
}

}  // namespace

double tolerance(const std::string& what, const std::string& kind) {
  const Json& all = cases().at("tolerances");
  const auto own = all.find(what + ", " + kind);
  return own != all.end() ? own->get<double>() : all.at(what).get<double>();
}

std::vector<Shape> shapes_of(const std::string& list, Tier tier) {
  std::vector<Shape> all;
  for (const Json& one : cases_of(list, tier)) all.push_back(shape_at(one));
  return all;
}

std::vector<RowCodec> row_codecs(Tier tier) {
  std::vector<RowCodec> all;
  for (const Json& one : cases_of("codecs", tier)) {
    all.push_back({.levels = one.value("levels", 4),
                   .group_size = one.value("group", 0),
                   .clip_ratio = one.value("clip", 0.0),
                   .grid = grid_from_name(one.value("grid", "minmax")),
                   .scale_dtype = dtype_at(one, "scale")});
  }
  return all;
}

std::vector<double> gaussian(std::size_t size, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(size);
  for (double& x : values) x = normal(engine);
  return values;
}

Tensor activations(const Shape& shape, int heads, unsigned seed) {
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const std::vector<double> random =
      gaussian(static_cast<std::size_t>(shape.tokens) * static_cast<std::size_t>(heads) * dim, seed);
  std::vector<float> values(random.begin(), random.end());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] *= i % dim % 29 == 3 ? 6.0F : 1.0F;
  return convert(Tensor::from({shape.tokens, heads, shape.head_dim}, std::span<const float>(values)), shape.dtype);
}

std::vector<float> codec_rows(std::size_t count, std::size_t dim) {
  const std::vector<double> random = gaussian(count * dim, 21);
  std::vector<float> rows(random.begin(), random.end());
  for (std::size_t row = 0; row < count; ++row) {
    const std::span<float> x = std::span(rows).subspan(row * dim, dim);
    for (std::size_t i = 0; i < dim; ++i) {
      if (row % 11 == 1) x[i] = 0.0F;
      if (row % 11 == 2) x[i] = -5.0F;
      if (row % 11 == 3) x[i] *= 1e30F;
      if (row % 11 == 4) x[i] *= 1e-30F;
      if (row % 11 == 5) x[i] = std::round(x[i]);
      if (row % 11 == 6) x[i] = round_to_bf16(x[i]);
      if (row % 11 == 7) x[i] = i % 2 == row / 11 % 2 ? 0.0F : -0.0F;
      if (row % 11 == 8) x[i] = i % 3 == 0 ? (i % 2 == row / 11 % 2 ? 0.0F : -0.0F) : std::abs(x[i]);
      if (row % 11 == 9 && i % 5 != row / 11 % 5) x[i] = 0.0F;
    }
  }
  return rows;
}

MatrixStack gaussian_matrices(int count, int dim, unsigned seed) {
  MatrixStack stack(count, dim);
  stack.data = gaussian(stack.data.size(), seed);
  for (double& x : stack.data) x /= std::sqrt(static_cast<double>(dim));
  return stack;
}

MatrixStack symmetric_matrices(int count, int dim, unsigned seed) {
  const MatrixStack any = gaussian_matrices(count, dim, seed);
  MatrixStack stack(count, dim);
  const auto size = static_cast<std::size_t>(dim);
  for (int m = 0; m < count; ++m) {
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < size; ++j) stack[m][i * size + j] = any[m][i * size + j] + any[m][j * size + i];
    }
  }
  return stack;
}

MatrixStack eigenproblems(int dim) {
  MatrixStack stack = symmetric_matrices(4, dim, 31);
  const auto size = static_cast<std::size_t>(dim);
  const std::vector<double> u = gaussian(size, 32);
  const MatrixStack factors = gaussian_matrices(1, dim, 33);
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < size; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < size; ++k) {
        sum += factors[0][i * size + k] * factors[0][j * size + k] * std::exp(-0.2 * double(k));
      }
      stack[1][i * size + j] = sum;
      stack[2][i * size + j] = (i == j ? 1.0 : 0.0) + u[i] * u[j];
      stack[3][i * size + j] = 0;
    }
  }
  return stack;
}

std::shared_ptr<const std::vector<CodedFormat>> coded_formats(int kv_heads, int dim) {
  std::vector<CodedFormat> formats;
  for (int head = 0; head < kv_heads; ++head) {
    CodedFormat& format = formats.emplace_back();
    for (int i = 0; i < dim; ++i) {
      const int bits = std::max(0, 8 - head % 5 - i / 8 * 9 / (dim / 8));
      format.levels.push_back(1 << bits);
      format.sigma.push_back(1.0F + 0.125F * static_cast<float>(i % 5));
      format.step.push_back(bits == 0 ? 0.0F : 5.0F / static_cast<float>(1 << bits) * format.sigma.back());
    }
  }
  return std::make_shared<const std::vector<CodedFormat>>(std::move(formats));
}

void check_error(const std::string& what, const Shape& shape, double error, double tolerance) {
  std::printf("measured: %s | %s | %d | %lld | %.3g | %.3g\n", what.c_str(), std::string(name_of(shape.dtype)).c_str(),
              shape.head_dim, static_cast<long long>(shape.tokens), error, tolerance);
  INFO(what, ", ", std::string(name_of(shape.dtype)), ", head_dim ", shape.head_dim, ", tokens ", shape.tokens);
  CHECK(error <= tolerance);
}

bool all_bf16(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return round_to_bf16(x) == x; });
}

double relative_error(const MatrixStack& a, const MatrixStack& b) {
  double worst = 0;
  for (int m = 0; m < b.count; ++m) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < b[m].size(); ++i) {
      difference += (a[m][i] - b[m][i]) * (a[m][i] - b[m][i]);
      norm += b[m][i] * b[m][i];
    }
    const double error = difference == 0 ? 0.0 : std::sqrt(difference / norm);
    worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
  }
  return worst;
}

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

std::vector<Sequence> sequences_of(Tier tier) {
  std::vector<Sequence> all;
  for (const Json& one : cases_of("sequences", tier)) {
    const Shape shape = shape_at(one);
    const std::int64_t last = shape.tokens - 1;
    const std::string kind = one.value("kind", ""), history = one.value("history", "");
    if (kind == "prefill") {
      all.emplace_back(shape, 6, 2, std::vector<std::int64_t>{});
    } else if (kind == "queries") {  // two of them at one position
      all.emplace_back(shape, 5, 1, std::vector<std::int64_t>{0, last / 3, last / 3, last / 2, last});
    } else if (kind == "decode") {
      all.emplace_back(shape, 3, 3, std::vector<std::int64_t>{last});
    } else {
      std::istringstream words(one.value("positions", ""));
      const std::vector<std::int64_t> positions(std::istream_iterator<std::int64_t>(words), {});
      all.emplace_back(shape, one.at("heads").get<int>(), one.at("kv_heads").get<int>(), positions,
                       one.value("value_dim", 0));
      if (!history.empty()) all.back() = std::move(all.back()).with_history(history == "both");
    }
  }
  return all;
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
      {RowCodec{.levels = 16, .group_size = 8, .clip_ratio = 0.9}, RowCodec{}},
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
