// SPDX-License-Identifier: MIT
// Held sequences: the GPU against the reference (small shapes) and the CPU, for every kind of group, window, query and
// codec.
#include <cstring>
#include <thread>

#include "kernels/reference/reference_backend.hpp"
#include "unit/kernels/agreement.hpp"
#include "unit/kernels_cuda/samples.hpp"

namespace oscar {
namespace {

using namespace test;

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

TEST_CASE("small: attend_matches_reference") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  bool serving = false;  // in turn: racecheck is slow
  for (const Sequence& s : small_sequences()) {
    serving = !serving;
    check_attend({*expected, *gpu, kOfGpu}, s, serving ? Precision::kServing : Precision::kExact, serving,
                 {kSmallWindows[serving ? 0 : 1]});
  }
}

TEST_CASE("small: compare_matches_reference") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  for (const Sequence& s : small_sequences())
    check_compare({*expected, *gpu, kOfGpu}, s, Precision::kServing, kSmallWindows);
}

TEST_CASE("small: row_errors_match_reference") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  for (const Sequence& s : small_sequences())
    check_row_errors({*expected, *gpu, kOfGpu}, s, s.decoded_k.shape.empty(), kSmallWindows[0]);
}

TEST_CASE("small: attend by score rules matches the reference") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = reference::make_reference_backend();
  for (Sequence& s : small_sequences()) {
    for (const ScoreRule& rule : score_rules(s.heads)) {
      s.rule = rule;
      check_attend({*expected, *gpu, kOfGpu}, s, Precision::kExact, s.decoded_k.shape.empty(), kSmallWindows);
    }
  }
}

TEST_CASE("attend_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const Sequence& s : sequences()) {
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      for (const bool rotated : {true, false}) check_attend({*expected, *gpu, kOfGpu}, s, precision, rotated, kWindows);
    }
  }
}

TEST_CASE("compare_matches_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const Sequence& s : sequences()) {
    for (const Precision precision : {Precision::kExact, Precision::kServing}) {
      check_compare({*expected, *gpu, kOfGpu}, s, precision, kWindows);
    }
  }
}

TEST_CASE("row_errors_match_cpu") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
  for (const Sequence& s : sequences()) {
    for (const bool rotated : {true, false}) check_row_errors({*expected, *gpu, kOfGpu}, s, rotated, kWindows[0]);
  }
}

TEST_CASE("compare_matches_cpu where candidates, heads and queries need several passes") {
  const std::unique_ptr<Backend> gpu = gpu_or_skip();
  if (gpu == nullptr) return;
  const std::unique_ptr<Backend> expected = make_cpu_backend();
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
  check_compare(kOfGpu, s, gpu->hold(input)->compare(candidates, {64, 256}),
                expected->hold(input)->compare(candidates, {64, 256}));
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
  check_compare(kOfGpu, s, gpu->hold(input)->compare(candidates, {64, 256}),
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
