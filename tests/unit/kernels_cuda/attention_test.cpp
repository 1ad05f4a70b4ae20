// SPDX-License-Identifier: MIT
// Held sequences: the GPU against the CPU, for every kind of group, window, query and codec.
#include <cstring>
#include <optional>
#include <thread>

#include "unit/kernels_cuda/samples.hpp"

namespace oscar {
namespace {

using namespace test;

MatrixStack scaled_matrices(int count, int dim, std::uint32_t seed) {
  MatrixStack matrices = gaussian_matrices(count, dim, seed);
  for (double& x : matrices.data) x /= std::sqrt(dim);
  return matrices;
}

/// A sequence and its transforms, with a read side of its own for keys and for values of another size than keys.
struct Sequence {
  Shape shape;
  int heads, kv_heads;
  std::vector<std::int64_t> positions;
  Transform key, value;
  Tensor q, k, v, decoded_k, decoded_v;
  std::optional<ScoreRule> rule;

  Sequence(const Shape& shape_, int heads_, int kv_heads_, std::vector<std::int64_t> positions_, int value_dim = 0)
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
  [[nodiscard]] SequenceInput input(Precision precision, bool rotated = true) const {
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
  /// Without transforms, the history of the keys, or of both sides, is rows of their own.
  Sequence with_history(bool of_values) && {
    decoded_k = activations({DType::kF32, shape.head_dim, shape.tokens}, kv_heads, 47);
    if (of_values) decoded_v = activations({DType::kF32, value.rotation.dim, shape.tokens}, kv_heads, 48);
    return std::move(*this);
  }
  [[nodiscard]] std::size_t out_size() const {
    return static_cast<std::size_t>(q.shape[0]) * static_cast<std::size_t>(heads * value.rotation.dim);
  }
};

/// Prefill, a few queries (two of them at one position), and decode.
void add_sequences(const Shape& shape, std::vector<Sequence>& all) {
  const std::int64_t last = shape.tokens - 1;
  all.emplace_back(shape, 6, 2, std::vector<std::int64_t>{});
  all.emplace_back(shape, 5, 1, std::vector<std::int64_t>{0, last / 3, last / 3, last / 2, last});
  all.emplace_back(shape, 3, 3, std::vector<std::int64_t>{last});
}

std::vector<Sequence> sequences() {
  std::vector<Sequence> all;
  for (const Shape& shape : shapes()) add_sequences(shape, all);
  all.emplace_back(Shape{DType::kBF16, 64, 1301}, 4, 2, std::vector<std::int64_t>{});
  all.emplace_back(Shape{DType::kBF16, 128, 437}, 12, 2, std::vector<std::int64_t>{});
  all.emplace_back(Shape{DType::kF32, 128, 301}, 24, 2, std::vector<std::int64_t>{31, 300});
  all.emplace_back(Shape{DType::kF16, 192, 333}, 4, 2, std::vector<std::int64_t>{}, 128);
  all.emplace_back(Shape{DType::kBF16, 72, 150}, 4, 4, std::vector<std::int64_t>{}, 256);
  return all;
}

/// Small enough for compute-sanitizer, with a shape for each kernel variant.
std::vector<Sequence> small_sequences() {
  std::vector<Sequence> all;
  for (const int dim : {64, 80, 128, 192, 256})
    all.emplace_back(Shape{DType::kBF16, dim, 43}, 4, 2, std::vector<std::int64_t>{});
  add_sequences({DType::kF32, 72, 70}, all);
  all.push_back(Sequence({DType::kBF16, 64, 45}, 4, 2, {}).with_history(true));
  all.push_back(Sequence({DType::kF32, 80, 39}, 3, 3, {7, 38}).with_history(false));
  all.emplace_back(Shape{DType::kF16, 64, 37}, 12, 1, std::vector<std::int64_t>{5, 36}, 96);
  all.emplace_back(Shape{DType::kBF16, 64, 1}, 6, 1, std::vector<std::int64_t>{});
  return all;
}

const std::vector<Windows> kWindows{{4, 16}, {0, 0}, {0, 40}, {10, 0}, {64, 256}};
const std::vector<Windows> kSmallWindows{{4, 7}, {0, 0}};

/// A clip ratio for each KV head; the first is not clipped.
std::vector<double> head_ratios(int kv_heads) {
  std::vector<double> ratios(1);
  for (int head = 1; head < kv_heads; ++head) ratios.push_back(0.98 - 0.06 * head);
  return ratios;
}

HistoryCodec coded(int kv_heads, int dim) {
  HistoryCodec codec;
  codec.coded = coded_formats(kv_heads, dim);
  return codec;
}

/// Both sides, one side, none; packed rows of the coded cache; whole rows and groups, with and without clipping, 4
/// levels and more.
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

double relative(double got, double expected) {
  return expected == 0 ? std::abs(got) : std::abs(got - expected) / std::abs(expected);
}

/// The largest relative difference of a sum.
double largest_error(const AttentionErrors& got, const AttentionErrors& expected) {
  double worst = 0;
  for (const auto member :
       {&AttentionErrors::softmax_kl, &AttentionErrors::output_error, &AttentionErrors::output_norm,
        &AttentionErrors::output_cosine, &AttentionErrors::logit_error, &AttentionErrors::logit_norm,
        &AttentionErrors::needle_mass, &AttentionErrors::needle_kept}) {
    worst = std::max(worst, relative(got.*member, expected.*member));
  }
  return worst;
}

struct Backends {
  std::unique_ptr<Backend> gpu = gpu_or_skip();
  std::unique_ptr<Backend> cpu = make_cpu_backend();
};

void check_attend(Backends& on, const Sequence& s, Precision precision, bool rotated,
                  const std::vector<Windows>& all_windows) {
  const bool serving = precision == Precision::kServing;
  const auto reference = on.cpu->hold(s.input(precision, rotated)), held = on.gpu->hold(s.input(precision, rotated));
  for (const Windows& windows : all_windows) {
    for (const HistoryCodecs& codecs : codecs_for(s)) {
      std::vector<float> expected(s.out_size());
      Guarded<float> got(expected.size());
      reference->attend(codecs, windows, expected);
      held->attend(codecs, windows, got.get());
      CHECK(got.intact());
      CHECK((!serving || rotated || all_bf16(got.get())));
      // An output may fall to the other side of a tie: one bfloat16 unit of the largest is 2^-7 of it at most.
      check_error(serving ? "attend, serving" : "attend", s.shape,
                  largest_difference(got.get(), expected) / largest_magnitude(expected),
                  serving ? std::ldexp(1.0, -7) : 1e-4);
    }
  }
}

void check_compare(const Sequence& s, const std::vector<std::vector<AttentionErrors>>& got,
                   const std::vector<std::vector<AttentionErrors>>& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0, worst_query = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    REQUIRE(got[i].size() == expected[i].size());
    for (std::size_t head = 0; head < got[i].size(); ++head) {
      CHECK(got[i][head].queries == expected[i][head].queries);
      REQUIRE(got[i][head].query_kl.size() == expected[i][head].query_kl.size());
      worst = std::max(worst, largest_error(got[i][head], expected[i][head]));
      worst_query = std::max(worst_query, largest_difference(got[i][head].query_kl, expected[i][head].query_kl));
    }
  }
  check_error("compare", s.shape, worst, 1e-6);
  check_error("compare, KL of a query", s.shape, worst_query, 1e-6);
}

void check_compare(Backends& on, const Sequence& s, Precision precision, const std::vector<Windows>& all_windows) {
  const bool rotated = s.decoded_k.shape.empty();
  const auto reference = on.cpu->hold(s.input(precision, rotated)), held = on.gpu->hold(s.input(precision, rotated));
  for (const Windows& windows : all_windows) {
    const std::vector<HistoryCodecs> codecs = codecs_for(s);
    check_compare(s, held->compare(codecs, windows), reference->compare(codecs, windows));
  }
}

void check_row_errors(Backends& on, const Sequence& s, bool rotated, Windows windows) {
  const SequenceInput input = s.input(Precision::kServing, rotated);
  const auto reference = on.cpu->hold(input), held = on.gpu->hold(input);
  for (const HistoryCodecs& codecs : codecs_for(s)) {
    const std::vector<RowErrors> expected = reference->row_errors(codecs, windows);
    const std::vector<RowErrors> got = held->row_errors(codecs, windows);
    REQUIRE(got.size() == expected.size());
    double worst = 0;
    for (const auto member :
         {&RowErrors::key_signal, &RowErrors::key_noise, &RowErrors::value_signal, &RowErrors::value_noise}) {
      for (std::size_t h = 0; h < got.size(); ++h) {
        worst = std::max(worst, relative(got[h].*member, expected[h].*member));
      }
    }
    check_error("row_errors", s.shape, worst, 1e-7);
  }
}

/// Everything that a sequence answers, as bytes.
std::vector<double> answers(Backend& backend, const Sequence& s) {
  const auto held = backend.hold(s.input(Precision::kServing));
  const std::vector<HistoryCodecs> codecs = codecs_for(s);
  std::vector<float> out(s.out_size());
  held->attend(codecs[0], {4, 16}, out);
  std::vector<double> all(out.begin(), out.end());
  for (const auto& heads : held->compare(codecs, {4, 16})) {
    for (const AttentionErrors& e : heads) {
      all.insert(all.end(), {e.softmax_kl, e.output_error, e.output_norm, e.output_cosine, e.logit_error, e.logit_norm,
                             e.needle_mass, e.needle_kept});
    }
  }
  for (const RowErrors& rows : held->row_errors(codecs[0], {4, 16})) {
    all.insert(all.end(), {rows.key_signal, rows.key_noise, rows.value_signal, rows.value_noise});
  }
  return all;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace

TEST_CASE("small: attend_matches_cpu") {
  Backends on;
  if (on.gpu == nullptr) return;
  bool serving = false;  // in turn: racecheck is slow
  for (const Sequence& s : small_sequences()) {
    serving = !serving;
    check_attend(on, s, serving ? Precision::kServing : Precision::kExact, serving, {kSmallWindows[serving ? 0 : 1]});
  }
}

TEST_CASE("small: compare_matches_cpu") {
  Backends on;
  if (on.gpu == nullptr) return;
  for (const Sequence& s : small_sequences()) check_compare(on, s, Precision::kServing, kSmallWindows);
}

TEST_CASE("small: row_errors_match_cpu") {
  Backends on;
  if (on.gpu == nullptr) return;
  for (const Sequence& s : small_sequences()) check_row_errors(on, s, s.decoded_k.shape.empty(), kSmallWindows[0]);
}

TEST_CASE("small: attend by score rules matches the CPU") {
  Backends on;
  if (on.gpu == nullptr) return;
  for (Sequence& s : small_sequences()) {
    std::vector<float> sinks;
    for (int head = 0; head < s.heads; ++head) sinks.push_back(3 - static_cast<float>(head));
    for (const ScoreRule& rule :
         {ScoreRule{1.5, 0, {}}, ScoreRule{0, 13, {}}, ScoreRule{0, 0, sinks}, ScoreRule{2, 33, sinks}}) {
      s.rule = rule;
      check_attend(on, s, Precision::kExact, s.decoded_k.shape.empty(), kSmallWindows);
    }
  }
}

TEST_CASE("attend_matches_cpu") {
  Backends on;
  if (on.gpu == nullptr) return;
  for (const Sequence& s : sequences()) {
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      for (const bool rotated : {true, false}) check_attend(on, s, precision, rotated, kWindows);
    }
  }
}

TEST_CASE("compare_matches_cpu") {
  Backends on;
  if (on.gpu == nullptr) return;
  for (const Sequence& s : sequences()) {
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      check_compare(on, s, precision, kWindows);
    }
  }
}

TEST_CASE("row_errors_match_cpu") {
  Backends on;
  if (on.gpu == nullptr) return;
  for (const Sequence& s : sequences()) {
    for (const bool rotated : {true, false}) check_row_errors(on, s, rotated, kWindows[0]);
  }
}

TEST_CASE("compare_matches_cpu where candidates, heads and queries need several passes") {
  Backends on;
  if (on.gpu == nullptr) return;
  std::vector<std::int64_t> positions;
  for (std::int64_t p = 511; p < 8192; p += 512) positions.insert(positions.end(), {p - 1, p, p});
  const Sequence s({DType::kBF16, 128, 8192}, 6, 2, positions);
  std::vector<HistoryCodecs> candidates;
  for (int i = 0; i < 12; ++i) {
    candidates.push_back({RowCodec{.clip_ratio = 1 - 0.03 * i}, RowCodec{.clip_ratio = i < 6 ? 0.96 : 0.9}});
  }
  candidates.push_back({HistoryCodec{{}, {0.96, 0.8}}, HistoryCodec{{}, {0.9, 1}}});
  candidates.push_back({coded(2, 128), coded(2, 128)});
  const SequenceInput input = s.input(Precision::kServing);
  check_compare(s, on.gpu->hold(input)->compare(candidates, {64, 256}),
                on.cpu->hold(input)->compare(candidates, {64, 256}));
}

TEST_CASE("compare_matches_cpu where GPU memory is short") {
  if (gpu_or_skip() == nullptr) return;
  Notices notices;
  const auto gpu = gpu_with("OSCAR_CUDA_MEMORY_LIMIT", "70", notices);
  std::vector<std::int64_t> positions;
  for (std::int64_t p = 400; p < 4096; p += 200) positions.push_back(p);
  const Sequence s({DType::kBF16, 128, 4096}, 6, 2, positions);
  std::vector<HistoryCodecs> candidates;
  for (int i = 0; i < 12; ++i) candidates.push_back({RowCodec{.clip_ratio = 1 - 0.03 * i}, RowCodec{}});
  const SequenceInput input = s.input(Precision::kServing);
  check_compare(s, gpu->hold(input)->compare(candidates, {64, 256}),
                make_cpu_backend()->hold(input)->compare(candidates, {64, 256}));
  CHECK(notices.mention("GPU memory is short"));
}

TEST_CASE("held sequences give the same bits in every run, and from several threads at once") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  std::vector<Sequence> all;
  for (const int dim : {64, 96, 128}) add_sequences({DType::kBF16, dim, 201}, all);
  std::vector<std::vector<double>> expected(all.size()), got(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) expected[i] = answers(*gpu, all[i]);
  for (int run = 0; run < 3; ++run) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] { got[i] = answers(*gpu, all[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(same_bits(got[i], expected[i]));
  }
}

}  // namespace oscar
